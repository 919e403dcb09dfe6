#include "passes/recognize/recognize_activation.h"

#include <cmath>
#include <numbers>

#include "passes/recognize/pattern.h"

namespace partita {
namespace {

struct Activation {
  Pattern pattern;
  std::string_view op;
  Attrs attrs;
};

// Larger ones first.
std::vector<Activation> activations() {
  Pattern x = any("x"), one = number(1);
  Pattern erf = op("erf", {product({x}, std::numbers::sqrt2 / 2)});
  Pattern cubic =
      one_of({op("add", {product({x, x, x}, 0.044715), x}), product({op("add", {product({x, x}, 0.044715), one}), x})});
  Pattern inner = one_of({product({cubic}, std::sqrt(2 / std::numbers::pi)),
                          product({op("add", {product({x, x}, 0.044715), one}), x}, std::sqrt(2 / std::numbers::pi))});
  Pattern logistic = product({inverse(op("add", {op("exp", {op("neg", {x})}), one}))});
  Pattern sigmoid = one_of({op("sigmoid", {x}), logistic});
  return {
      {product({op("add", {op("tanh", {inner}), one}), x}, 0.5), "gelu", {{"approximate", int64_t{1}}}},
      {product({op("add", {erf, one}), x}, 0.5), "gelu", {{"approximate", int64_t{0}}}},
      {product({sigmoid, x}), "silu", {}},
      {product({inverse(op("add", {op("exp", {op("neg", {x})}), one})), x}), "silu", {}},
      {logistic, "sigmoid", {}},
      {op("log", {op("add", {op("exp", {x}), one})}), "softplus", {}},
      {op("log1p", {op("exp", {x})}), "softplus", {}},
  };
}

}  // namespace

absl::StatusOr<Graph> recognize_activation(const Graph& graph, const PassContext& context) {
  std::vector<Activation> known = activations();
  return replace_all(graph, context, [&](const GraphFacts& facts, const Node& node) -> std::optional<Replacement> {
    ValueId root = node.outputs[0];
    std::string_view op = node.op->name;
    if (op != "mul" && op != "div" && op != "log" && op != "log1p") return std::nullopt;
    for (const Activation& a : known) {
      auto m =
          find_match(facts, a.pattern, root, [&](const Match& m) { return facts.type(m["x"]) == facts.type(root); });
      if (!m) continue;
      return Replacement{m->nodes, root,
                         [x = (*m)["x"], &a](Rewriter& r) { return r.builder().emit(a.op, {r(x)}, a.attrs); }};
    }
    return std::nullopt;
  });
}

}  // namespace partita
