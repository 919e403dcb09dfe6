#include "passes/recognize/recognize_norm.h"

#include "passes/recognize/pattern.h"

namespace partita {
namespace {

struct Norm {
  Pattern pattern;
  std::string_view op;
  bool scale, bias;
};

// normalized / sqrt(mean(square) + epsilon), both ways to write it. The factors; the caller adds the scale.
std::vector<std::vector<PatternFactor>> standardized(const Pattern& normalized, const Pattern& square) {
  Pattern mean = product({named("sum of squares", op("reduce_sum", {square}))}, "square 1/n");
  Pattern shifted = op("add", {mean, number("epsilon")});
  Pattern rsqrt = one_of({op("rsqrt", {shifted}), op("pow", {shifted, number(-0.5)})}),
          sqrt = one_of({op("sqrt", {shifted}), op("pow", {shifted, number(0.5)})});
  return {{rsqrt, normalized}, {inverse(sqrt), normalized}};
}

// Larger ones first.
std::vector<Norm> norms() {
  Pattern x = any("x"), scale = any("scale"), bias = any("bias");
  Pattern centered = op("sub", {x, product({named("sum", op("reduce_sum", {x}))}, "1/n")});
  std::vector<Norm> out;
  for (bool rms : {false, true}) {
    for (bool has_bias : {true, false}) {
      for (bool has_scale : {true, false}) {
        if (has_bias && (rms || !has_scale)) continue;  // elsewhere the bias is an add of its own
        auto ways = rms ? standardized(x, product({x, x})) : standardized(centered, product({centered, centered}));
        for (std::vector<PatternFactor>& factors : ways) {
          if (has_scale) factors.push_back(scale);
          Pattern p = product(factors);
          out.push_back({has_bias ? op("add", {p, bias}) : p, rms ? "rms_norm" : "layer_norm", has_scale, has_bias});
        }
      }
    }
  }
  return out;
}

// First normalized dimension of a sum over all dimensions from it on, each kept with size 1; -1 for other sums.
int64_t axis_of(const GraphFacts& facts, ValueId sum) {
  const Node* node = facts.graph().producer(sum);
  while (node->op->name == "cast") node = facts.graph().producer(node->inputs[0]);
  if (node->attrs.i("keep", 0) == 0) return -1;
  const Shape &from = facts.shape(node->inputs[0]), &to = facts.shape(node->outputs[0]);
  std::vector<bool> summed(from.size(), false);
  for (int64_t d : node->attrs.ints("dims")) summed[d] = true;
  size_t axis = 0;
  while (axis < summed.size() && !summed[axis]) ++axis;
  for (size_t d = axis; d < summed.size(); ++d) {
    if (!summed[d]) return -1;
  }
  return to.size() == from.size() ? static_cast<int64_t>(axis) : -1;
}

Shape normalized_shape(const Shape& x, int64_t axis) { return Shape(x.begin() + axis, x.end()); }

// Whether a scale or bias varies along the normalized dimensions alone.
bool fits(const Shape& weight, const Shape& x, int64_t axis) {
  if (weight.size() > x.size()) return false;
  size_t lead = x.size() - weight.size();
  for (size_t d = 0; d < weight.size(); ++d) {
    bool normalized = static_cast<int64_t>(d + lead) >= axis;
    if (weight[d] != 1 && (!normalized || weight[d] != x[d + lead])) return false;
  }
  return true;
}

// The weight in the shape of the normalized dimensions.
ValueId fitted(Builder& b, ValueId weight, const Shape& normalized, DType type) {
  Shape s = b.shape(weight);
  while (s.size() > normalized.size()) s.erase(s.begin());
  return b.cast(b.broadcast_to(b.reshape(weight, s), normalized), type);
}

bool is_sound(const GraphFacts& facts, const Norm& norm, const Match& m, ValueId root) {
  ValueId x = m["x"];
  const Shape& shape = facts.shape(x);
  int64_t axis = axis_of(facts, m["sum of squares"]);
  if (axis < 0 || axis >= static_cast<int64_t>(shape.size()) || shape != facts.shape(root)) return false;
  double n = static_cast<double>(elements(normalized_shape(shape, axis)));
  DType type = facts.type(x).dtype;
  if (!is_near(m.number("square 1/n") * n, 1, type) || m.number("epsilon") < 0) return false;
  if (m.has("sum") && (axis_of(facts, m["sum"]) != axis || !is_near(m.number("1/n") * n, 1, type))) return false;
  for (std::string_view weight : {"scale", "bias"}) {
    if (!(weight == "scale" ? norm.scale : norm.bias)) continue;
    if (!is_float(facts.type(m[weight]).dtype) || !fits(facts.shape(m[weight]), shape, axis)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<Graph> recognize_norm(const Graph& graph, const PassContext& context) {
  std::vector<Norm> known = norms();
  return replace_all(graph, context, [&](const GraphFacts& facts, const Node& node) -> std::optional<Replacement> {
    ValueId root = node.outputs[0];
    std::string_view op = node.op->name;
    if (op != "add" && op != "mul" && op != "div") return std::nullopt;
    for (const Norm& norm : known) {
      auto m = find_match(facts, norm.pattern, root, [&](const Match& m) { return is_sound(facts, norm, m, root); });
      if (!m) continue;
      int64_t axis = axis_of(facts, (*m)["sum of squares"]);
      auto emit = [m = *m, axis, root, &norm, &facts](Rewriter& r) {
        Builder& b = r.builder();
        ValueId x = r(m["x"]);
        DType type = b.dtype(x);
        Shape normalized = normalized_shape(b.shape(x), axis);
        std::vector<ValueId> in = {
            x, norm.scale ? fitted(b, r(m["scale"]), normalized, type) : b.full(type, normalized, 1)};
        if (norm.bias) in.push_back(fitted(b, r(m["bias"]), normalized, type));
        return b.cast(b.emit(norm.op, in, {{"axis", axis}, {"epsilon", m.number("epsilon")}}), facts.type(root).dtype);
      };
      return Replacement{m->nodes, root, emit};
    }
    return std::nullopt;
  });
}

}  // namespace partita
