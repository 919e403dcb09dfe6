// Changes of a disassembled bundle that know nothing of what it means: an integer, a real, a text or a list is changed,
// dropped, repeated, or exchanged with a sibling.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace partita {

class BlindMutator {
 public:
  // `json`: {"programs": […], "evaluation": […]}. Code in base64 is left alone: what it does is not the program's.
  explicit BlindMutator(nlohmann::ordered_json json);

  const nlohmann::ordered_json& json() const { return json_; }
  // Changes one thing until undo(), and says what: "programs[0].segments[1].steps[4].inputs: 2 -> 3".
  std::string mutate(std::mt19937& rng);
  void undo();

 private:
  using Json = nlohmann::ordered_json;
  using Pointer = Json::json_pointer;

  void note(const Json& json, const Pointer& at, const std::string& place);
  std::string change(Json& x, const std::vector<Pointer>& alike, std::mt19937& rng);

  Json json_;
  // By place without indices: numbers, texts and lists. One place is as likely as another, however many it is of.
  std::map<std::string, std::vector<Pointer>> places_;
  Pointer changed_;
  Json before_;
};

}  // namespace partita
