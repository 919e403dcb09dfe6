#include "tools/verify/check_plans.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

// Numbers expressions: two values have the same number where they are made by the same operations of the same states,
// inputs and constants.
class Expressions {
 public:
  std::vector<int64_t> number(const Graph& g) {
    std::vector<int64_t> of(g.values.size(), -1);
    for (const GraphInput& in : g.inputs) of[in.value] = leaf("input", in.name, enum_name(in.kind), g.type(in.value));
    for (const State& s : g.states) of[s.value] = leaf("state", s.name, enum_name(s.kind), g.type(s.value));
    for (const Constant& c : g.constants) {
      const auto bytes = c.literal.bytes();
      of[c.value] =
          leaf("constant", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "", g.type(c.value));
    }
    for (const Node& n : g.nodes) {
      // What a step's micro-batches add up is the whole.
      if (n.op->name == "accumulate" || n.op->name == "accumulate_tree") {
        of[n.outputs[0]] = of[n.inputs[1]];
        continue;
      }
      std::vector<int64_t> inputs;
      for (ValueId v : n.inputs) inputs.push_back(v == kNoValue ? -1 : of[v]);
      const int64_t made = application(n, std::move(inputs));
      for (size_t k = 0; k < n.outputs.size(); ++k) of[n.outputs[k]] = made + static_cast<int64_t>(k);
    }
    return of;
  }

 private:
  int64_t leaf(std::string_view what, const std::string& name, std::string_view kind, const TensorType& type) {
    const auto [at, fresh] = leaves_.try_emplace(std::tuple(what, name, kind, to_string(type)), next_);
    next_ += fresh;
    return at->second;
  }
  // The number of its first output.
  int64_t application(const Node& n, std::vector<int64_t> inputs) {
    auto& known = applications_[{n.op->name, std::move(inputs), n.outputs.size()}];
    for (const auto& [attrs, number] : known) {
      if (attrs == n.attrs) return number;
    }
    known.emplace_back(n.attrs, next_);
    return std::exchange(next_, next_ + static_cast<int64_t>(n.outputs.size()));
  }

  int64_t next_ = 0;
  std::map<std::tuple<std::string_view, std::string, std::string_view, std::string>, int64_t> leaves_;
  std::map<std::tuple<std::string_view, std::vector<int64_t>, size_t>, std::vector<std::pair<Attrs, int64_t>>>
      applications_;
};

// What a program leaves, by name.
std::map<std::string, int64_t> results(const Graph& g, const std::vector<int64_t>& numbers) {
  std::map<std::string, int64_t> all;
  for (const State& s : g.states) {
    if (s.kind != StateKind::kAccumulator)
      all[cat("state ", quote(s.name, 200))] = s.next == kNoValue ? numbers[s.value] : numbers[s.next];
  }
  for (const GraphOutput& o : g.outputs) all[cat("output ", quote(o.name, 200))] = numbers[o.value];
  return all;
}

}  // namespace

absl::Status check_same_training(const ProgramSet& first, const ProgramSet& other) {
  if (first.samples != other.samples)
    return differs("expected ", first.samples, " samples a step, found ", other.samples);
  if (first.run != other.run) return differs("expected a run by ", first.run.dump(), ", found ", other.run.dump());
  Expressions expressions;
  const auto expected = results(first.serial, expressions.number(first.serial));
  const auto found = results(other.serial, expressions.number(other.serial));
  for (const auto& [name, number] : found) {
    if (!expected.contains(name)) return differs("expected no ", name);
  }
  for (const auto& [name, number] : expected) {
    const auto at = found.find(name);
    if (at == found.end()) return differs("expected ", name, ", found none");
    if (at->second != number)
      return differs("expected ", name, " to be computed as by the bundle's first plan, found another computation");
  }
  return absl::OkStatus();
}

absl::Status check_same_training(const Bundle& first, const Bundle& other) {
  PARTITA_RETURN_IF_ERROR(check_same_training(static_cast<const ProgramSet&>(first), other));
  if (first.compress != other.compress)
    return differs("compress: expected ", first.compress, ", found ", other.compress);
  if (first.evaluation.has_value() != other.evaluation.has_value())
    return differs("evaluation: expected it in all plans, or in none");
  if (!first.evaluation) return absl::OkStatus();
  return with_context(check_same_training(*first.evaluation, *other.evaluation), "evaluation");
}

absl::Status check_same_states(const ProgramSet& first, const ProgramSet& other) {
  if (first.run != other.run) return differs("expected a run by ", first.run.dump(), ", found ", other.run.dump());
  const auto held = [](const Graph& g) {
    std::map<std::string, std::string> all;
    for (const State& s : g.states) {
      if (s.kind != StateKind::kAccumulator)
        all[s.name] = cat(enum_name(s.kind), " of ", quote(s.parameter, 200), ", ", to_string(g.type(s.value)));
    }
    return all;
  };
  const auto expected = held(first.serial), found = held(other.serial);
  for (const auto& [name, what] : found) {
    const auto at = expected.find(name);
    if (at == expected.end()) return differs("expected no state ", quote(name, 200));
    if (at->second != what) return differs("state ", quote(name, 200), ": expected ", at->second, ", found ", what);
  }
  for (const auto& [name, what] : expected) {
    if (!found.contains(name)) return differs("expected state ", quote(name, 200), ", found none");
  }
  return absl::OkStatus();
}

absl::Status check_length(const ProgramSet& first, const ProgramSet& other, int64_t length) {
  PARTITA_RETURN_IF_ERROR(check_same_states(first, other));
  const nlohmann::json& said = first.run.value("lengths", nlohmann::json::object());
  if (!said.is_object() || said.size() != 1 || !said.begin()->is_array() || said.begin()->empty())
    return differs("lengths: expected those of one dimension, found ", said.dump());
  const int64_t largest = said.begin()->back().get<int64_t>();
  if (other.samples * length != first.samples * largest)
    return differs("expected as many positions a step as ", first.samples, " samples of length ", largest, ", found ",
                   other.samples, " of ", length);
  if (first.serial.inputs.size() != other.serial.inputs.size())
    return differs("expected ", first.serial.inputs.size(), " inputs, found ", other.serial.inputs.size());
  bool any = false;
  for (size_t k = 0; k < first.serial.inputs.size(); ++k) {
    const GraphInput &mine = first.serial.inputs[k], &theirs = other.serial.inputs[k];
    TensorType expected = first.serial.type(mine.value);
    const TensorType& found = other.serial.type(theirs.value);
    for (size_t d = 0; d < std::min(expected.shape.size(), found.shape.size()); ++d) {
      const bool batch = d == 0 && mine.kind == InputKind::kData;  // in runs that may be of another size
      const bool bound = d > 0 && expected.shape[d] == largest && found.shape[d] == length;
      if (batch || bound) expected.shape[d] = found.shape[d];
      any = any || bound;
    }
    if (mine.name != theirs.name || mine.kind != theirs.kind || expected != found)
      return differs("expected input ", quote(mine.name, 200), " of ", to_string(first.serial.type(mine.value)),
                     " with length ", length, " for ", largest, ", found ", quote(theirs.name, 200), " of ",
                     to_string(found));
  }
  if (!any) return differs("expected an input of length ", length, ", found none");
  return absl::OkStatus();
}

}  // namespace partita::verifier
