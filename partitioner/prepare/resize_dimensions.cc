// Each change is an axis of a mesh that splits what has the size, wherever it stands, into single elements. So a value
// is [4@samples][32] or, of tokens in one dimension, [(4@samples 32)], and what a node does to that follows from its
// formula, as in localize; a factor's new size is its part on such a mesh times the changes' new sizes.
#include "partitioner/prepare/resize_dimensions.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/mesh/factor_split.h"

namespace partita {
namespace {

constexpr int kSourceDepth = 64;  // nodes between a value that is read and the constants that it is made of

// A sum over a factor that becomes another size.
struct ResizedSum {
  double terms = 1, now = 1;
};

class Resizer {
 public:
  Resizer(const Graph& graph, const Resizing& resizing)
      : graph_(graph),
        resizing_(resizing),
        constants_(constant_values(graph)),
        now_(graph.values.size(), kNoValue),
        lies_(graph.values.size()),
        sums_(graph.values.size()) {
    for (const SizeChange& c : resizing.changes) mesh_.axes.push_back({c.name, c.from});
  }

  absl::StatusOr<Graph> run() {
    start();
    for (const Node& node : graph_.nodes) {
      if (absl::Status status = visit(node); !status.ok()) return status;
    }
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      ValueId next = graph_.states[k].next;
      if (next == kNoValue) continue;
      if (lies_[next].is_split()) return refused(next);
      b_.set_next_of(k, now_[next]);
    }
    for (const GraphOutput& o : graph_.outputs) b_.output(o.name, now_[o.value]);
    return std::move(b_).finish();
  }

 private:
  void start() {
    b_.take_names(graph_);
    for (size_t v = 0; v < graph_.values.size(); ++v)
      lies_[v] = Sharding::replicated(graph_.type(static_cast<ValueId>(v)).shape);
    for (const GraphInput& in : graph_.inputs) {
      TensorType type = graph_.type(in.value);
      if (resizing_.inputs >= 0 && in.kind == InputKind::kData && type.rank() > 0) {
        lies_[in.value].dims[0][0].axes = {resizing_.inputs};
        type.shape[0] = type.shape[0] / change(resizing_.inputs).from * change(resizing_.inputs).to;
      }
      now_[in.value] = b_.input(in.name, std::move(type), in.kind);
    }
    for (const State& s : graph_.states) {
      State copy = s;
      copy.next = kNoValue;
      now_[s.value] = b_.state(std::move(copy), graph_.type(s.value));
    }
    for (const Constant& c : graph_.constants) now_[c.value] = b_.constant(c.literal, graph_.values[c.value].name);
    b_ = Builder(std::move(b_).finish());  // so that scalar constants are shared with the old ones
  }

  const SizeChange& change(int axis) const { return resizing_.changes[static_cast<size_t>(axis)]; }
  int64_t resized(int64_t size, const std::vector<int>& axes) const {
    for (int a : axes) size = size / change(a).from * change(a).to;
    return size;
  }

  struct Operand {
    ValueId now;
    Sharding lies;
  };
  Operand operand(NodeId n, size_t k) {
    ValueId v = graph_.nodes[n].inputs[k];
    auto at = resizing_.operands.find({n, k});
    if (at == resizing_.operands.end()) return {now_[v], lies_[v]};
    const auto& [literal, axis] = at->second;
    Sharding lies = Sharding::replicated(literal.type.shape);
    if (axis >= 0) lies.dims.back() = {{change(axis).from, {axis}}};
    return {b_.constant(literal), std::move(lies)};
  }

  absl::Status visit(const Node& node) {
    NodeId n = static_cast<NodeId>(&node - graph_.nodes.data());
    Formula formula = bound_formula(graph_, node);
    std::vector<Operand> operands;
    std::vector<size_t> present;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] == kNoValue) continue;
      present.push_back(k);
      operands.push_back(operand(n, k));
    }
    for (size_t k = 0; k < present.size(); ++k) refine(formula, false, k, operands[k].lies, mesh_);
    FactorSplit split{std::vector<std::vector<int>>(formula.factors.size())};
    for (size_t k = 0; k < present.size(); ++k) {
      if (!take(formula, formula.inputs[k], operands[k].lies, split)) return refused(node);
    }
    if (!propagates(formula, split)) return refused(node);
    b_.context() = {node.segment, node.origin, node.block, node.weight_gradient, node.device, node.chunk};
    std::vector<ValueId> inputs(node.inputs.size(), kNoValue);
    for (size_t k = 0; k < present.size(); ++k) {
      Sharding wanted = operand_sharding(formula, formula.inputs[k], split);
      ValueId v = node.inputs[present[k]];
      inputs[present[k]] = lie_alike(wanted, operands[k].lies) ? operands[k].now : source(v, wanted, 0);
      if (inputs[present[k]] == kNoValue) return refused(node);
    }
    keep_means(node, inputs);
    PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> outputs, emit(node, formula, split, inputs));
    for (size_t k = 0; k < outputs.size(); ++k) {
      now_[node.outputs[k]] = outputs[k];
      lies_[node.outputs[k]] = operand_sharding(formula, formula.outputs[k], split);
      sums_[node.outputs[k]] = sum_of(formula, split);
    }
    return absl::OkStatus();
  }

  // Gives the axes of an operand to its factors; false where one of them lies at none. One axis may be at several
  // factors: samples that are compared with each other are rows and columns of a product.
  bool take(const Formula& formula, const FormulaOperand& operand, const Sharding& lies, FactorSplit& split) const {
    auto all = proposals(formula, operand, lies, mesh_);
    auto whole = split_whole_factors(formula, operand, lies, mesh_);
    all.insert(all.end(), whole.begin(), whole.end());
    std::vector<int> found, there;
    for (const auto& [factor, axes] : all) {
      std::vector<int>& split_by = split.axes[static_cast<size_t>(factor)];
      for (int a : axes) {
        if (std::count(split_by.begin(), split_by.end(), a) == 0) split_by.push_back(a);
        found.push_back(a);
      }
    }
    for (int d = 0; d < static_cast<int>(lies.dims.size()); ++d) {
      for (int a : lies.axes_of(d)) there.push_back(a);
    }
    std::sort(found.begin(), found.end()), std::sort(there.begin(), there.end());
    return found == there;
  }

  // What must be kept whole is done to the new number of elements (positions counted by a running sum), unless it
  // picks some of them.
  bool propagates(const Formula& formula, const FactorSplit& split) const {
    for (size_t f = 0; f < split.axes.size(); ++f) {
      if (split.axes[f].empty()) continue;
      if (formula.factors[f].size % mesh_.ways(split.axes[f]) != 0) return false;
      if (formula.factors[f].role != FactorRole::kWhole) continue;
      for (const FormulaOperand& out : formula.outputs) {
        if (!has_factor(out, static_cast<int>(f))) return false;
      }
    }
    return true;
  }

  static bool lie_alike(const Sharding& a, const Sharding& b) {
    for (int d = 0; d < static_cast<int>(a.dims.size()); ++d) {
      if (a.axes_of(d) != b.axes_of(d)) return false;
    }
    return true;
  }

  absl::StatusOr<std::vector<ValueId>> emit(const Node& node, const Formula& formula, const FactorSplit& split,
                                            std::vector<ValueId> inputs) {
    Formula now = formula;
    for (size_t f = 0; f < split.axes.size(); ++f) now.factors[f].size = resized(now.factors[f].size, split.axes[f]);
    std::vector<Shape> in, out;
    for (ValueId v : inputs) in.push_back(v == kNoValue ? Shape{} : b_.shape(v));
    for (const FormulaOperand& o : now.outputs) out.push_back(operand_shape(now, o));
    auto outputs = b_.try_emit(*node.op, std::move(inputs), localized_attrs(*node.op, node.attrs, in, out));
    if (!outputs.ok()) return refused(node);
    for (size_t k = 0; k < outputs->size(); ++k) {
      if (b_.shape((*outputs)[k]) != out[k]) return refused(node);
      const std::string& name = graph_.values[node.outputs[k]].name;
      if (!name.empty()) b_.name((*outputs)[k], name);
    }
    return outputs;
  }

  // A value that no input reaches, made again with the sizes wanted; kNoValue where it differs between elements, or
  // has a state's size.
  ValueId source(ValueId v, const Sharding& wanted, int depth) {
    if (!wanted.is_split()) return lies_[v].is_split() ? kNoValue : now_[v];
    if (lies_[v].is_split() || depth > kSourceDepth) return kNoValue;
    if (constants_[v] != nullptr) return resized_constant(*constants_[v], wanted);
    const Node* node = graph_.producer(v);
    if (node == nullptr) return kNoValue;
    Formula formula = bound_formula(graph_, *node);
    size_t output = static_cast<size_t>(graph_.values[v].output);
    refine(formula, true, output, wanted, mesh_);
    FactorSplit split{std::vector<std::vector<int>>(formula.factors.size())};
    if (!take(formula, formula.outputs[output], wanted, split) || !propagates(formula, split)) return kNoValue;
    std::vector<ValueId> inputs(node->inputs.size(), kNoValue);
    size_t present = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (node->inputs[k] == kNoValue) continue;
      inputs[k] = source(node->inputs[k], operand_sharding(formula, formula.inputs[present++], split), depth + 1);
      if (inputs[k] == kNoValue) return kNoValue;
    }
    auto outputs = emit(*node, formula, split, std::move(inputs));
    return outputs.ok() ? (*outputs)[output] : kNoValue;
  }

  // The same for all elements of the changed sizes, as many as there are now.
  ValueId resized_constant(const Literal& literal, const Sharding& wanted) {
    // Of each dimension's index: without its part along the changes.
    auto first = [&](size_t d, int64_t index, bool after) {
      int64_t at = 0, stride = 1, old_stride = 1;
      for (size_t k = wanted.dims[d].size(); k-- > 0;) {
        const Piece& p = wanted.dims[d][k];
        int64_t size = after ? resized(p.size, p.axes) : p.size, inner = p.size;
        for (int a : p.axes) inner /= change(a).from;
        int64_t digit = index / stride % size;
        at += (p.axes.empty() ? digit : digit % inner) * old_stride;
        stride *= size;
        old_stride *= p.size;
      }
      return at;
    };
    auto source_of = [&](const Shape& shape, int64_t element, bool after) {
      int64_t from = 0, stride = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        from += first(d, element % shape[d], after) * stride;
        element /= shape[d];
        stride *= literal.type.shape[d];
      }
      return from;
    };
    Shape shape;
    for (const auto& dim : wanted.dims) {
      shape.push_back(1);
      for (const Piece& p : dim) shape.back() *= resized(p.size, p.axes);
    }
    const size_t size = static_cast<size_t>(dtype_size(literal.type.dtype));
    for (int64_t k = 0; k < elements(literal.type.shape); ++k) {
      const std::byte* from = literal.data + static_cast<size_t>(source_of(literal.type.shape, k, false)) * size;
      if (!std::equal(from, from + size, literal.data + static_cast<size_t>(k) * size)) return kNoValue;
    }
    std::vector<std::byte> bytes;
    for (int64_t k = 0; k < elements(shape); ++k) {
      const std::byte* from = literal.data + static_cast<size_t>(source_of(shape, k, true)) * size;
      bytes.insert(bytes.end(), from, from + size);
    }
    return b_.constant(make_literal({literal.type.dtype, shape}, std::move(bytes)));
  }

  std::optional<ResizedSum> sum_of(const Formula& formula, const FactorSplit& split) const {
    ResizedSum sum;
    for (size_t f = 0; f < split.axes.size(); ++f) {
      if (formula.factors[f].role != FactorRole::kSum) continue;
      sum.terms *= static_cast<double>(formula.factors[f].size);
      sum.now *= static_cast<double>(resized(formula.factors[f].size, split.axes[f]));
    }
    return sum.terms == sum.now ? std::nullopt : std::optional(sum);
  }

  // Sum times 1/n, or by n, is a mean (Builder::mean).
  void keep_means(const Node& node, std::vector<ValueId>& inputs) {
    bool times = node.op->name == "mul", by = node.op->name == "div";
    for (size_t k = 0; k < 2 && (times || by); ++k) {
      const auto& sum = sums_[node.inputs[k]];
      const Literal* number = constants_[node.inputs[1 - k]];
      if (!sum || number == nullptr || elements(number->type.shape) != 1 || (by && k == 1)) continue;
      double n = times ? 1 / element_f(*number, 0) : element_f(*number, 0);
      if (!is_float(number->type.dtype) || std::abs(n / sum->terms - 1) > 1e-5) continue;
      ValueId now = b_.scalar(number->type.dtype, times ? 1 / sum->now : sum->now);
      inputs[1 - k] = number->type.rank() == 0 ? now : b_.reshape(now, number->type.shape);
    }
  }

  absl::Status refused(const Node& node) const {
    std::string names;
    for (const SizeChange& c : resizing_.changes)
      append(names, names.empty() ? "" : " and ", "from ", c.from, " to ", c.to, " ", c.name);
    return absl::InvalidArgumentError(
        cat(graph_.origin(node), ": cannot follow the change ", names,
            " through it; export the model for the wanted sizes, or with a symbolic batch dimension"));
  }
  absl::Status refused(ValueId v) const {
    const Node* node = graph_.producer(v);
    return node != nullptr ? refused(*node) : absl::InvalidArgumentError(cat("cannot resize ", graph_.values[v].name));
  }

  const Graph& graph_;
  const Resizing& resizing_;
  std::vector<const Literal*> constants_;
  Mesh mesh_;
  Builder b_;
  std::vector<ValueId> now_;
  std::vector<Sharding> lies_;
  std::vector<std::optional<ResizedSum>> sums_;
};

}  // namespace

absl::StatusOr<Graph> resize_dimensions(const Graph& graph, const Resizing& resizing) {
  return Resizer(graph, resizing).run();
}

}  // namespace partita
