#include "tools/mutation/blind_mutation.h"

#include <cmath>
#include <iterator>
#include <limits>

#include "base/cat.h"

namespace partita {
namespace {

using Json = nlohmann::ordered_json;

std::string brief(const Json& json) {
  std::string text = json.dump();
  return text.size() <= 60 ? text : cat(std::string_view(text).substr(0, 60), "…");
}

std::string changed_list(Json& list, std::mt19937& rng) {
  if (list.empty()) return "nothing";
  const size_t k = rng() % list.size(), other = rng() % list.size();
  auto at = [&](size_t i) { return list.begin() + static_cast<int64_t>(i); };
  switch (rng() % 5) {
    case 0:
      list.erase(at(k));
      return cat("entry ", k, " dropped");
    case 1: {
      const Json copy = list[k];
      list.insert(at(k), copy);
      return cat("entry ", k, " repeated");
    }
    case 2:
      std::swap(list[k], list[other]);
      return cat("entries ", k, " and ", other, " exchanged");
    case 3:
      list[k] = Json(list[other]);
      return cat("entry ", k, " made what ", other, " is");
    default:
      list = Json::array();
      return "emptied";
  }
}

void change_integer(Json& x, std::mt19937& rng) {
  const auto n = x.get<int64_t>();
  const int64_t others[] = {n + 1, n - 1, n + 64, n - 64, 0, 1, -1, -n, n / 2, n + 100000, int64_t{1} << 40};
  x = n > (int64_t{1} << 60) ? n / 2 : n < -(int64_t{1} << 60) ? n + 1 : others[rng() % std::size(others)];
}

void change_real(Json& x, std::mt19937& rng) {
  const double n = x.get<double>();
  const double others[] = {n * 2, -n, 0, 1, n + 1, std::nextafter(n, std::numeric_limits<double>::infinity())};
  x = others[rng() % std::size(others)];
}

void change_text(Json& x, std::mt19937& rng) {
  auto text = x.get<std::string>();
  switch (rng() % 3) {
    case 0:
      text += "x";
      break;
    case 1:
      if (!text.empty()) text.erase(rng() % text.size(), 1);
      break;
    default:
      text.clear();
  }
  x = text;
}

}  // namespace

BlindMutator::BlindMutator(Json json) : json_(std::move(json)) { note(json_, Pointer(), ""); }

void BlindMutator::note(const Json& json, const Pointer& at, const std::string& place) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      if (key.find("kernels") == std::string::npos) note(value, at / key, cat(place, place.empty() ? "" : ".", key));
    }
    return;
  }
  places_[place].push_back(at);
  if (!json.is_array()) return;
  for (size_t k = 0; k < json.size(); ++k) note(json[k], at / k, place + "[]");
}

std::string BlindMutator::mutate(std::mt19937& rng) {
  const auto& [place, alike] = *std::next(places_.begin(), static_cast<int64_t>(rng() % places_.size()));
  changed_ = alike[rng() % alike.size()];
  Json& x = json_[changed_];
  before_ = x;
  return cat(changed_.to_string(), ": ", change(x, alike, rng));
}

std::string BlindMutator::change(Json& x, const std::vector<Pointer>& alike, std::mt19937& rng) {
  if (rng() % 4 == 0) {  // what a sibling of it is
    x = Json(json_[alike[rng() % alike.size()]]);
  } else if (x.is_array()) {
    return changed_list(x, rng);
  } else if (x.is_number_integer()) {
    change_integer(x, rng);
  } else if (x.is_number()) {
    change_real(x, rng);
  } else if (x.is_string()) {
    change_text(x, rng);
  }
  return cat(brief(before_), " -> ", brief(x));
}

void BlindMutator::undo() { json_[changed_] = std::move(before_); }

}  // namespace partita
