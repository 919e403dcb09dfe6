#include "partitioner/planner/workload/pinned_cuts.h"

#include <algorithm>
#include <unordered_map>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

bool matches(const UnitPlace& place, const std::string& glob) {
  return std::any_of(place.names.begin(), place.names.end(),
                     [&](const std::string& name) { return glob_match(glob, name); });
}

// What to call it: a parameter where it reads one.
const std::string& name_of(const UnitPlace& place) { return place.names[place.names.size() > 1 ? 1 : 0]; }

// "block 3": a kind is named after its first unit.
std::string unit_name(const Workload& w, int unit) {
  const std::string& kind = w.unit(static_cast<size_t>(unit)).name;
  if (!kind.starts_with("block")) return kind;
  int before = 0;
  for (int k = 0; k < unit; ++k) before += w.unit(static_cast<size_t>(k)).name.starts_with("block");
  return cat("block ", before);
}

// What a cut at the beginning of the unit could be pinned by.
std::string beginning_of(const Workload& w, int unit) {
  for (const UnitPlace& place : w.places) {
    if (place.unit == unit && !place.inside) return cat(quote(name_of(place), 200), " (", unit_name(w, unit), ")");
  }
  return "";
}

absl::Status inside(const Workload& w, const std::string& glob, const UnitPlace& place) {
  std::string nearest;
  for (int unit = std::max(place.unit, 1); unit <= place.unit + 1 && unit < static_cast<int>(w.units.size()); ++unit) {
    if (std::string name = beginning_of(w, unit); !name.empty()) append(nearest, nearest.empty() ? "" : " and ", name);
  }
  return absl::InvalidArgumentError(
      cat("pin cuts: ", quote(glob, 200), " first matches ", quote(name_of(place), 200), ", inside of ",
          unit_name(w, place.unit), ", which a plan keeps in one piece; the nearest places to cut are ",
          nearest.empty() ? "none" : nearest, "; compile and train cut anywhere, without a plan"));
}

}  // namespace

absl::StatusOr<std::vector<int>> pinned_cuts(const Workload& w, const std::vector<std::string>& cuts) {
  std::vector<int> parts;
  int begun = 0;  // the unit that the part at hand begins with
  for (const std::string& glob : cuts) {
    auto at = std::find_if(w.places.begin(), w.places.end(), [&](const UnitPlace& p) { return matches(p, glob); });
    if (at == w.places.end())
      return absl::InvalidArgumentError(
          cat("pin cuts: ", quote(glob, 200), ": no forward node reads a parameter, or has a name, that it matches"));
    if (at->inside) return inside(w, glob, *at);
    if (at->unit <= begun)
      return absl::InvalidArgumentError(
          cat("pin cuts: ", quote(glob, 200), " begins at ", quote(name_of(*at), 200),
              ", which leaves nothing to the stage before; expected cuts in the order of the model"));
    parts.push_back(at->unit - begun);
    begun = at->unit;
  }
  parts.push_back(static_cast<int>(w.units.size()) - begun);
  return parts;
}

std::vector<std::string> names_of_cuts(const Workload& w, const std::vector<int>& parts) {
  std::unordered_map<std::string_view, int> first;  // the unit that has each name first
  for (const UnitPlace& p : w.places) {
    for (const std::string& name : p.names) first.try_emplace(name, p.unit);
  }
  std::vector<std::string> begins(w.units.size());
  for (const UnitPlace& p : w.places) {
    std::string& begin = begins[static_cast<size_t>(p.unit)];
    if (p.inside || !begin.empty()) continue;
    auto own = [&](const std::string& name) {  // and no glob of others
      return first.at(name) == p.unit && name.find_first_of("*?[") == name.npos;
    };
    // Parameters rather than nodes, whose names change with each export.
    auto name = std::find_if(p.names.begin() + 1, p.names.end(), own);
    if (name != p.names.end()) {
      begin = *name;
    } else if (own(p.names[0])) {
      begin = p.names[0];
    }
  }
  std::vector<std::string> cuts;
  size_t unit = 0;
  for (size_t k = 0; k + 1 < parts.size(); ++k) {
    unit += static_cast<size_t>(parts[k]);
    if (parts[k] < 1 || unit >= begins.size() || begins[unit].empty()) return {};
    cuts.push_back(begins[unit]);
  }
  return cuts;
}

}  // namespace partita
