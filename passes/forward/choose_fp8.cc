#include "passes/forward/choose_fp8.h"

#include <algorithm>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/graph/dependence.h"
#include "ir/recipe/glob.h"

namespace partita {
namespace {

std::vector<bool> states_of(const Graph& graph) {
  std::vector<bool> is_state(graph.values.size(), false);
  for (const State& s : graph.states) is_state[s.value] = true;
  return is_state;
}

class Chooser {
 public:
  Chooser(const Graph& graph, const Fp8Recipe& recipe)
      : graph_(graph),
        recipe_(recipe),
        weight_(graph.values.size(), -1),
        of_weight_(depends_on(graph, states_of(graph))) {
    for (const GraphInput& in : graph.inputs) {
      const Shape& shape = graph.type(in.value).shape;
      if (in.kind != InputKind::kData || shape.empty()) continue;
      samples_ = shape[0];
      break;
    }
    mark_weights();
    mark_last();
  }

  std::vector<Fp8Product> choices() const {
    std::vector<Fp8Product> out;
    for (const Node& node : graph_.nodes) {
      const bool chosen = is_chosen(node);
      out.push_back({chosen, chosen && has_blocks_of_rows(graph_.type(node.inputs[0]).shape)});
    }
    return out;
  }

 private:
  // States, and what only casts or moves one.
  void mark_weights() {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      weight_[graph_.states[k].value] = static_cast<int>(k);
    }
    for (const Node& node : graph_.nodes) {
      if (node.inputs.size() == 1 && (node.op->casts || node.op->moves || node.op->view))
        weight_[node.outputs[0]] = weight_[node.inputs[0]];
    }
  }

  // before_[v]: what is made of v is multiplied with a weight.
  void mark_last() {
    before_.assign(graph_.values.size(), false);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (node.segment != Segment::kForward) continue;
      const bool any = multiplies_weight(node) ||
                       std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return before_[v]; });
      for (ValueId v : node.inputs) {
        if (v != kNoValue && any) before_[v] = true;
      }
    }
  }

  bool multiplies_weight(const Node& node) const {
    return node.op->work == WorkKind::kMatrix && node.inputs.size() > 1 && node.inputs[1] != kNoValue &&
           weight_[node.inputs[1]] >= 0;
  }

  bool is_chosen(const Node& node) const {
    if (node.op->name != "matmul" || node.segment != Segment::kForward || !multiplies_weight(node)) return false;
    if (node.attrs.i("transpose_a", 0) != 0) return false;
    const ValueId x = node.inputs[0], w = node.inputs[1];
    const Shape& shape = graph_.type(w).shape;
    const int64_t rows = shape[shape.size() - 2], columns = shape.back();
    return is_float(graph_.type(x).dtype) && weight_[x] < 0 && of_weight_[x] && before_[node.outputs[0]] &&
           elements(shape) == rows * columns && rows % recipe_.block == 0 && columns % recipe_.block == 0 &&
           !matches_any(recipe_.keep, graph_.states[static_cast<size_t>(weight_[w])].name);
  }

  // Whether blocks of rows [.., rows, k] lie within samples, so that ranks that have other samples have whole blocks.
  bool has_blocks_of_rows(const Shape& shape) const {
    const int64_t rows = elements(shape) / shape.back();
    return rows % samples_ == 0 && rows / samples_ % recipe_.block == 0 &&
           (shape.size() == 2 || shape[shape.size() - 2] % recipe_.block == 0);
  }

  const Graph& graph_;
  const Fp8Recipe& recipe_;
  int64_t samples_ = 1;
  std::vector<int> weight_;      // per value: the state that it is, or is a copy of; -1: none
  std::vector<bool> of_weight_;  // per value: depends on a state
  std::vector<bool> before_;
};

}  // namespace

std::vector<Fp8Product> fp8_products(const Graph& graph, const Fp8Recipe& recipe) {
  return Chooser(graph, recipe).choices();
}

absl::StatusOr<Graph> choose_fp8(const Graph& graph, const PassContext& context) {
  if (context.recipe.precision != Precision::kFp8) return graph;
  const Fp8Recipe& recipe = context.recipe.fp8;
  const std::vector<Fp8Product> choices = fp8_products(graph, recipe);
  if (std::none_of(choices.begin(), choices.end(), [](const Fp8Product& c) { return c.forward; })) {
    return absl::InvalidArgumentError(cat(
        "precision: fp8: no product of ", graph.name, " can multiply fp8 numbers: expected products of data with a ",
        "weight, between the first layers and the last, whose sides are multiples of fp8.block ", recipe.block,
        recipe.block > 32 ? " (32 is the least)" : "", "; take precision: bf16"));
  }
  Rewriter r(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!choices[n].forward) {
      r.copy(node);
      continue;
    }
    r.at(node);
    Attrs attrs = node.attrs;
    attrs.set("fp8", recipe.block);
    attrs.set("a", std::string(enum_name(Fp8Format::kE4M3)));
    attrs.set("b", std::string(enum_name(Fp8Format::kE4M3)));
    attrs.set("tiles", int64_t{1});
    attrs.set("gradient", std::string(enum_name(recipe.gradients)));
    if (choices[n].weight_gradient) attrs.set("rows", int64_t{1});
    r.replace(node.outputs[0],
              r.builder().emit("fp8_matmul", {r(node.inputs[0]), r(node.inputs[1])}, std::move(attrs)));
  }
  return std::move(r).finish();
}

}  // namespace partita
