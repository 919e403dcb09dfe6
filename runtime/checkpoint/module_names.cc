#include "runtime/checkpoint/module_names.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"

namespace partita::runtime {
namespace {

constexpr size_t kAsked = 64;  // names that a suggestion is made from

bool is_of_model(const CheckpointTensor& t) {
  return t.kind == StateKind::kParameter || t.kind == StateKind::kRunning || t.kind == StateKind::kFrozen;
}

// PEFT's tuners keep a dictionary by adapter under a name that begins so.
bool holds_adapters(std::string_view part) {
  return part.starts_with("lora_") || part.starts_with("ia3_") || part.starts_with("vera_lambda_");
}

// All elements alike, as first values often are: equal tensors of such do not tell a tie.
bool is_uniform(std::span<const std::byte> bytes, int64_t size) {
  return bytes.size() <= static_cast<size_t>(size) ||
         std::memcmp(bytes.data(), bytes.data() + size, bytes.size() - static_cast<size_t>(size)) == 0;
}

class Placer {
 public:
  Placer(const std::vector<CheckpointTensor>& tensors, const ModuleWeights& file, const Renaming& renaming)
      : tensors_(tensors), file_(file) {
    for (const CheckpointTensor& t : tensors) {
      if (!is_of_model(t)) continue;
      const std::string name = renaming(t.name);
      by_name_.emplace(name, &t);
      by_adapter_name_[adapter_file_name(name)].push_back(&t);
    }
  }

  ModulePlaces place(bool copies) {
    for (const SafetensorsEntry& e : file_.entries()) places_.sources.push_back(named(e));
    if (copies) place_equal_ones();
    find_unplaced();
    place_last_one();
    return std::move(places_);
  }

 private:
  static bool fits(const CheckpointTensor& t, const SafetensorsEntry& e) {
    return t.shape == e.shape && is_float(e.dtype);
  }

  const CheckpointTensor* named(const SafetensorsEntry& e) const {
    if (auto at = by_name_.find(e.name); at != by_name_.end() && fits(*at->second, e)) return at->second;
    auto at = by_adapter_name_.find(adapter_file_name(e.name));
    if (at == by_adapter_name_.end() || at->second.size() != 1 || !fits(*at->second[0], e)) return nullptr;
    return at->second[0];
  }

  void place_equal_ones() {
    const auto& entries = file_.entries();
    for (size_t k = 0; k < entries.size(); ++k) {
      const SafetensorsEntry& e = entries[k];
      if (places_.sources[k] != nullptr || !is_float(e.dtype) || e.shape.size() < 2) continue;
      const auto mine = file_.data(e);
      if (is_uniform(mine, dtype_size(e.dtype))) continue;
      for (size_t other = 0; other < entries.size() && places_.sources[k] == nullptr; ++other) {
        const SafetensorsEntry& o = entries[other];
        const auto its = file_.data(o);
        if (other != k && o.shape == e.shape && o.dtype == e.dtype &&
            std::equal(mine.begin(), mine.end(), its.begin(), its.end()))
          places_.sources[k] = named(o);
      }
    }
  }

  void find_unplaced() {
    const std::set<const CheckpointTensor*> used(places_.sources.begin(), places_.sources.end());
    for (const CheckpointTensor& t : tensors_) {
      if (t.kind == StateKind::kParameter && used.count(&t) == 0) places_.unplaced.push_back(&t);
    }
  }

  void place_last_one() {
    const bool others = std::any_of(places_.sources.begin(), places_.sources.end(), [](const CheckpointTensor* t) {
      return t != nullptr && t->kind == StateKind::kParameter;
    });
    if (places_.unplaced.size() != 1 || !others || places_.unplaced[0]->shape.size() < 2) return;
    std::vector<size_t> free;
    for (size_t k = 0; k < places_.sources.size(); ++k) {
      if (places_.sources[k] == nullptr && fits(*places_.unplaced[0], file_.entries()[k])) free.push_back(k);
    }
    if (free.size() != 1) return;
    const CheckpointTensor* t = places_.unplaced[0];
    places_.sources[free[0]] = t;
    places_.tied.push_back(cat(quote(t->name), " as ", quote(file_.entries()[free[0]].name)));
    places_.unplaced.clear();
  }

  const std::vector<CheckpointTensor>& tensors_;
  const ModuleWeights& file_;
  std::map<std::string, const CheckpointTensor*> by_name_;
  std::map<std::string, std::vector<const CheckpointTensor*>> by_adapter_name_;
  ModulePlaces places_;
};

// What has to change at the front for one name to become the other: all before the parts in which both end. False where
// not even their last parts are alike.
bool front_of(const std::string& name, const std::string& wanted, Renaming& out) {
  size_t a = name.size(), b = wanted.size(), cut_a = a, cut_b = b;
  while (a > 0 && b > 0 && name[a - 1] == wanted[b - 1]) {
    --a, --b;
    const bool begins_a = a == 0 || name[a - 1] == '.', begins_b = b == 0 || wanted[b - 1] == '.';
    if (begins_a && begins_b) cut_a = a, cut_b = b;
  }
  if (cut_a == name.size()) return false;
  out = {name.substr(0, cut_a), wanted.substr(0, cut_b)};
  return true;
}

}  // namespace

std::string Renaming::operator()(const std::string& name) const {
  return cat(add, name.starts_with(strip) ? name.substr(strip.size()) : name);
}

std::string adapter_file_name(const std::string& name) {
  std::string out;
  bool held = false;  // the part before holds a dictionary by adapter
  for (std::string_view rest = name; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const bool saved = part == "modules_to_save", adapter = held && part != "weight" && part != "bias";
    held = saved || holds_adapters(part);
    if (!saved && !adapter) append(out, out.empty() ? "" : ".", part);
  }
  return out;
}

ModulePlaces place_in_module(const std::vector<CheckpointTensor>& tensors, const ModuleWeights& file,
                             const Renaming& renaming, bool copies) {
  return Placer(tensors, file, renaming).place(copies);
}

std::string suggest_renaming(const std::vector<CheckpointTensor>& tensors, const ModuleWeights& file,
                             const ModulePlaces& places) {
  std::map<std::pair<std::string, std::string>, int64_t> votes;
  for (size_t u = 0; u < std::min(places.unplaced.size(), kAsked); ++u) {
    const CheckpointTensor& t = *places.unplaced[u];
    for (const SafetensorsEntry& e : file.entries()) {
      Renaming front;
      if (e.shape == t.shape && front_of(adapter_file_name(t.name), adapter_file_name(e.name), front))
        ++votes[{front.strip, front.add}];
    }
  }
  Renaming best;
  int64_t most = 0;
  for (const auto& [front, count] : votes) {
    if (count > most) most = count, best = {front.first, front.second};
  }
  if (most == 0 || (best.strip.empty() && best.add.empty())) return "";
  const size_t left = place_in_module(tensors, file, best, /*copies=*/false).unplaced.size(),
               now = places.unplaced.size();
  if (left >= now) return "";
  return cat(best.strip.empty() ? "" : cat("--strip-prefix ", best.strip),
             best.strip.empty() || best.add.empty() ? "" : " ", best.add.empty() ? "" : cat("--add-prefix ", best.add),
             " (", now - left, " of ", now, " would have one)");
}

absl::Status check_all_placed(const std::vector<CheckpointTensor>& tensors, const ModuleWeights& file,
                              const Renaming& renaming, const ModulePlaces& places) {
  if (places.unplaced.empty()) return absl::OkStatus();
  std::vector<std::string> lost, others, has;
  for (const CheckpointTensor* t : places.unplaced) {
    lost.push_back(t->name);
    const SafetensorsEntry* e = file.find(renaming(t->name));
    if (e == nullptr) continue;
    const bool turned =
        e->shape.size() == 2 && t->shape.size() == 2 && e->shape[0] == t->shape[1] && e->shape[1] == t->shape[0];
    others.push_back(cat(quote(e->name), " is ", e->dtype_text, shape_text(e->shape), " there and ",
                         dtype_name(t->dtype), shape_text(t->shape), " here",
                         turned ? " (the exporter transposed it: export with optimize=False)" : ""));
  }
  for (const SafetensorsEntry& e : file.entries()) has.push_back(e.name);
  std::string shapes;
  for (size_t k = 0; k < std::min<size_t>(others.size(), 8); ++k) append(shapes, "; ", others[k]);
  const std::string offer = suggest_renaming(tensors, file, places);
  return absl::InvalidArgumentError(cat(lost.size(), " trained parameters have no place in ", quote(file.path(), 1000),
                                        " by name and shape: ", quote_list(lost), shapes,
                                        offer.empty() ? "" : cat("; say ", offer), "; it has ", quote_list(has),
                                        ". Names here are the ONNX initializers'; `names` in train.yaml gives others"));
}

}  // namespace partita::runtime
