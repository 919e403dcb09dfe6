//   y [r,n] = grouped_matmul(x, w1, i);  h = silu(y);  z = grouped_matmul(h, w2, i)      of 8 matrices, in 4 parts:
//
//   y [(4 r),n] = grouped_matmul(x, w1, i, {0,2,4,6});  h [(4 r),n] = silu(y)
//   z = sum over 4 of grouped_matmul(h, w2, i, {0,2,4,6})
#include "passes/forward/divide_experts.h"

#include <cmath>
#include <map>
#include <optional>

#include "ir/graph/evaluate.h"
#include "passes/recognize/pattern.h"
#include "passes/rewrite/clean_up.h"

namespace partita {
namespace {

// A value that can have rows for each part: which choice of matrices they belong to, the dimension that they lie along
// and what all elements are in the rows that do not count.
struct InParts {
  std::pair<ValueId, int64_t> choice;  // indices, matrices
  int dim = 0;
  double elsewhere = 0;
};

class Divider {
 public:
  Divider(const Graph& graph, int64_t parts)
      : graph_(graph), facts_(graph), parts_(parts), in_parts_(graph.values.size()), wanted_(graph.values.size()) {}

  Graph run() {
    for (const Node& node : graph_.nodes) find(node);
    for (size_t n = graph_.nodes.size(); n-- > 0;) want(graph_.nodes[n]);
    Rewriter r(graph_);
    for (const Node& node : graph_.nodes) {
      if (is_divided(node)) {
        divide(r, node);
        continue;
      }
      if (wanted_[static_cast<size_t>(node.outputs[0])]) keep_in_parts(r, node);
      r.copy(node);
    }
    return std::move(r).finish();
  }

 private:
  bool is_divided(const Node& node) const {
    return node.op->chooses_matrices && node.inputs.size() == 3 && matrices(node) % parts_ == 0;
  }
  int64_t matrices(const Node& node) const { return facts_.shape(node.inputs[1])[0]; }
  std::pair<ValueId, int64_t> choice(const Node& node) const { return {node.inputs[2], matrices(node)}; }
  const std::optional<InParts>& of(ValueId v) const { return in_parts_[static_cast<size_t>(v)]; }
  bool reads_parts(const Node& node) const {
    const auto& x = of(node.inputs[0]);
    return x && x->choice == choice(node) && x->dim == 0 &&
           facts_.shape(node.inputs[0])[0] == facts_.shape(node.inputs[2])[0];
  }

  void find(const Node& node) {
    if (is_divided(node)) {
      in_parts_[static_cast<size_t>(node.outputs[0])] = InParts{choice(node)};
    } else if (node.outputs.size() == 1) {
      in_parts_[static_cast<size_t>(node.outputs[0])] = carried(node);
    }
  }

  void want(const Node& node) {
    if (is_divided(node)) {
      if (reads_parts(node)) wanted_[static_cast<size_t>(node.inputs[0])] = true;
    } else if (node.outputs.size() == 1 && wanted_[static_cast<size_t>(node.outputs[0])]) {
      for (ValueId v : node.inputs) {
        if (v != kNoValue && of(v)) wanted_[static_cast<size_t>(v)] = true;
      }
    }
  }

  // The node's result in parts, where its operands can be and it does the same to each row.
  std::optional<InParts> carried(const Node& node) const {
    std::optional<InParts> out;
    const Formula f = bound_formula(graph_, node);
    int rows = -1;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] == kNoValue) return std::nullopt;  // so that the formula's operands are the node's
      const auto& operand = of(node.inputs[k]);
      if (!operand) continue;
      if (out && operand->choice != out->choice) return std::nullopt;
      out = *operand;
      const std::vector<int>& dim = f.inputs[k].dims[static_cast<size_t>(operand->dim)];
      if (dim.empty() || (rows >= 0 && dim[0] != rows)) return std::nullopt;
      rows = dim[0];
    }
    if (!out || f.factors[static_cast<size_t>(rows)].role != FactorRole::kParallel) return std::nullopt;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (has_factor(f.inputs[k], rows) && outermost(f.inputs[k], rows) < 0) return std::nullopt;
    }
    out->dim = outermost(f.outputs[0], rows);
    const std::optional<double> elsewhere = made_elsewhere(node, f);
    if (out->dim < 0 || !elsewhere) return std::nullopt;
    out->elsewhere = *elsewhere;
    return out;
  }

  // The dimension whose outermost factor it is; -1: none.
  static int outermost(const FormulaOperand& operand, int factor) {
    for (size_t d = 0; d < operand.dims.size(); ++d) {
      if (!operand.dims[d].empty() && operand.dims[d][0] == factor) return static_cast<int>(d);
    }
    return -1;
  }

  // What the node makes in rows that do not count. nullopt: not one number, or not smooth there.
  std::optional<double> made_elsewhere(const Node& node, const Formula& f) const {
    if (makes_zeros(node, f)) return 0;
    if (node.op->scalar == nullptr) return std::nullopt;
    std::vector<double> at;
    for (ValueId v : node.inputs) {
      const std::optional<double> number = of(v) ? of(v)->elsewhere : facts_.number(v);
      if (!number) return std::nullopt;
      at.push_back(*number);
    }
    const double made = element(node, at);
    if (!std::isfinite(made)) return std::nullopt;
    constexpr double kStep = 1e-60, kSteepest = 1e6;
    for (size_t k = 0; k < at.size(); ++k) {
      for (double step : {kStep, -kStep}) {
        std::vector<double> near = at;
        near[k] += step;
        if (of(node.inputs[k]) && !(std::abs(element(node, near) - made) <= kSteepest * kStep)) return std::nullopt;
      }
    }
    return made;
  }

  // Whether it is linear in what is zero there.
  bool makes_zeros(const Node& node, const Formula& f) const {
    int group = -1;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!of(node.inputs[k])) continue;
      const int own = f.inputs[k].linear;
      if (of(node.inputs[k])->elsewhere != 0 || own < 0 || (group >= 0 && own != group)) return false;
      group = own;
    }
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (f.inputs[k].linear == group && !of(node.inputs[k])) return false;
    }
    return true;
  }

  double element(const Node& node, const std::vector<double>& at) const {
    std::vector<Tensor> inputs;
    for (size_t k = 0; k < at.size(); ++k) {
      Tensor t = Tensor::zeros({facts_.type(node.inputs[k]).dtype, {}});
      if (is_float(t.type.dtype)) {
        t.f[0] = at[k];
      } else {
        t.i[0] = static_cast<int64_t>(at[k]);
      }
      inputs.push_back(std::move(t));
    }
    std::vector<const Tensor*> in;
    for (const Tensor& t : inputs) in.push_back(&t);
    const Tensor out = evaluate_op(*node.op, node.attrs, in)[0];
    return is_float(out.type.dtype) ? out.f[0] : static_cast<double>(out.i[0]);
  }

  void divide(Rewriter& r, const Node& node) {
    r.at(node);
    Builder& b = r.builder();
    const ValueId x = reads_parts(node) ? now_.at(node.inputs[0]) : r(node.inputs[0]);
    const int64_t total = matrices(node);
    std::vector<int64_t> first;
    for (int64_t p = 0; p < parts_; ++p) first.push_back(p * (total / parts_));
    Attrs attrs = node.attrs;
    attrs.set("total", total);
    const ValueId y =
        b.emit(node.op->name, {x, r(node.inputs[1]), r(node.inputs[2]), b.constant(ints_literal(first))}, attrs);
    now_[node.outputs[0]] = y;
    Shape shape = facts_.shape(node.outputs[0]);
    shape.insert(shape.begin(), parts_);
    const ValueId sum = b.reduce_sum(b.reshape(y, shape), {0}, /*keep=*/false);
    r.replace(node.outputs[0], sum);
    const std::string& name = graph_.values[static_cast<size_t>(node.outputs[0])].name;
    if (!name.empty()) b.name(sum, name);
  }

  // The same node with rows for each part.
  void keep_in_parts(Rewriter& r, const Node& node) {
    r.at(node);
    Builder& b = r.builder();
    Formula f = bound_formula(graph_, node);
    int rows = -1;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (const auto& operand = of(node.inputs[k])) rows = f.inputs[k].dims[static_cast<size_t>(operand->dim)][0];
    }
    std::vector<ValueId> inputs;
    std::vector<Shape> in;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const int dim = outermost(f.inputs[k], rows);
      inputs.push_back(of(node.inputs[k]) ? now_.at(node.inputs[k])
                       : dim >= 0         ? repeated(b, r(node.inputs[k]), dim)
                                          : r(node.inputs[k]));
      in.push_back(b.shape(inputs.back()));
    }
    f.factors[static_cast<size_t>(rows)].size *= parts_;
    const std::vector<Shape> out = {operand_shape(f, f.outputs[0])};
    now_[node.outputs[0]] = b.emit(node.op->name, inputs, localized_attrs(*node.op, node.attrs, in, out));
  }

  // [a,r,b] -> [a,(p r),b]
  ValueId repeated(Builder& b, ValueId v, int dim) const {
    Shape shape = b.shape(v), wide = shape;
    wide.insert(wide.begin() + dim, 1);
    v = b.reshape(v, wide);
    wide[static_cast<size_t>(dim)] = parts_;
    shape[static_cast<size_t>(dim)] *= parts_;
    return b.reshape(b.broadcast_to(v, wide), shape);
  }

  const Graph& graph_;
  const GraphFacts facts_;
  const int64_t parts_;
  std::vector<std::optional<InParts>> in_parts_;
  std::vector<bool> wanted_;
  std::map<ValueId, ValueId> now_;  // values with rows for each part
};

}  // namespace

absl::StatusOr<Graph> divide_experts(const Graph& graph, const PassContext& context) {
  if (context.expert_parts <= 1) return graph;
  return remove_dead_nodes(Divider(graph, context.expert_parts).run(), context);
}

}  // namespace partita
