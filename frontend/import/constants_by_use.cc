#include "frontend/import/constants_by_use.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace partita {
namespace {

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

bool moves_only(std::string_view op) {
  return is_one_of(
      op, {"Cast", "Concat", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"});
}

bool is_zero(const OnnxTensor& t) {
  return t.literal && elements(t.type.shape) > 0 && is_uniform(*t.literal) && element_f(*t.literal, 0) == 0;
}

// A number for each channel, say; learned centers, which inputs are taken from as well, are a matrix.
bool is_vector(const OnnxTensor& t) {
  return std::ranges::count_if(t.type.shape, [](int64_t n) { return n != 1; }) <= 1;
}

class Uses {
 public:
  explicit Uses(const OnnxGraph& graph) : graph_(graph) {
    for (const OnnxTensor& t : graph.initializers) known_.insert(t.name);
    for (const OnnxValueInfo& in : graph.inputs) {
      if (!known_.contains(in.name)) inputs_.insert(in.name);
    }
    for (const OnnxNode& n : graph.nodes) {
      for (size_t k = 0; k < n.inputs.size(); ++k) readers_[n.inputs[k]].emplace_back(&n, k);
      for (const std::string& out : n.outputs) makers_[out] = &n;
      if (n.op == "Constant") known_.insert(n.outputs.begin(), n.outputs.end());
    }
  }

  bool is_constant(const OnnxTensor& t) const {
    const auto readers = readers_.find(t.name);
    if (readers == readers_.end()) return false;
    const bool one = elements(t.type.shape) == 1;
    bool constant = one && t.type.rank() == 0;
    for (const auto& [node, k] : readers->second) {
      if (one && would_be_folded(*node)) return false;
      constant = constant || (one && is_setting(*node, k, t)) || is_first_state(*node, k, t) ||
                 (is_vector(t) && prepares_input(*node, k));
    }
    return constant;
  }

 private:
  bool would_be_folded(const OnnxNode& node) const {
    return !moves_only(node.op) &&
           std::ranges::all_of(node.inputs, [&](const std::string& x) { return x.empty() || known_.contains(x); });
  }

  bool is_setting(const OnnxNode& node, size_t k, const OnnxTensor& t) const {
    if (is_one_of(node.op, {"Mod", "Pow"}) && k == 1) return true;
    if (node.op == "Pad" && k == 2) return true;
    if (is_one_of(node.op, {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"})) return true;
    if (node.op == "Where" && k > 0) return true;
    if (node.op == "Expand" && is_zero(t)) return true;
    return node.op == "Add" && !node.outputs.empty() &&
           read_by(node.outputs[0], {"Sqrt", "Pow"});  // x / sqrt(variance + epsilon)
  }

  bool is_first_state(const OnnxNode& node, size_t k, const OnnxTensor& t) const {
    const bool gates = is_one_of(node.op, {"LSTM", "GRU", "RNN"}) && (k == 5 || (k == 6 && node.op == "LSTM"));
    if (gates && t.type.rank() == 3 && t.type.shape[1] > 1) return true;
    return (gates || (node.op == "Loop" && k >= 2) || node.op == "Scan") && is_zero(t);
  }

  // As `x - mean` and `x / deviation` do, for an input x.
  bool prepares_input(const OnnxNode& node, size_t k) const {
    if (!is_one_of(node.op, {"Sub", "Div"}) || k != 1) return false;
    std::string x = node.inputs[0];
    for (size_t steps = 0; steps < graph_.nodes.size() && !inputs_.contains(x); ++steps) {
      const auto maker = makers_.find(x);
      if (maker == makers_.end()) return false;
      const OnnxNode& m = *maker->second;
      const bool scales =
          is_one_of(m.op, {"Add", "Sub", "Mul", "Div"}) && m.inputs.size() == 2 && known_.contains(m.inputs[1]);
      if (m.inputs.empty() || !(moves_only(m.op) || scales)) return false;
      x = m.inputs[0];
    }
    return inputs_.contains(x);
  }

  bool read_by(const std::string& value, std::initializer_list<std::string_view> ops) const {
    const auto readers = readers_.find(value);
    return readers != readers_.end() &&
           std::ranges::any_of(readers->second, [&](const auto& use) { return is_one_of(use.first->op, ops); });
  }

  const OnnxGraph& graph_;
  absl::flat_hash_set<std::string> known_, inputs_;
  absl::flat_hash_map<std::string, std::vector<std::pair<const OnnxNode*, size_t>>> readers_;
  absl::flat_hash_map<std::string, const OnnxNode*> makers_;
};

bool marks_parameters(const OnnxModel& model) {
  return std::ranges::any_of(model.graph.initializers, [](const OnnxTensor& t) { return t.parameter || t.buffer; });
}

}  // namespace

bool keeps_parameters_apart(const OnnxModel& model) { return is_one_of(model.producer, {"pytorch", "partita"}); }

absl::flat_hash_set<std::string> constants_by_use(const OnnxModel& model) {
  absl::flat_hash_set<std::string> found;
  const bool named = keeps_parameters_apart(model);
  if (named && (model.producer != "pytorch" || marks_parameters(model))) return found;
  const Uses uses(model.graph);
  for (const OnnxTensor& t : model.graph.initializers) {
    if (named && elements(t.type.shape) == 1) continue;
    if (is_float(t.type.dtype) && uses.is_constant(t)) found.insert(t.name);
  }
  return found;
}

}  // namespace partita
