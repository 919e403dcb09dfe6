#include "partitioner/communicate/row_parts.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace partita {
namespace {

// Of sizes one within the other, outermost first, the one that is cut into the parts, where `outer` comes before these.
struct PartedSize {
  size_t at = 0;
  int64_t outer = 1;
};

std::optional<PartedSize> parted_size(const std::vector<int64_t>& sizes, int64_t outer, int64_t count) {
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] == 0) return std::nullopt;
    if (sizes[k] % (outer * count) == 0) return PartedSize{k, outer};
    if (outer % sizes[k] != 0) return std::nullopt;
    outer /= sizes[k];
  }
  return std::nullopt;
}

// A factor, and what of it comes before the parts.
struct PartedFactor {
  int factor = -1;
  int64_t outer = 1;
};

std::optional<PartedFactor> parted_factor(const Formula& formula, const std::vector<int>& dim, int64_t outer,
                                          int64_t count) {
  std::vector<int64_t> sizes;
  for (int f : dim) sizes.push_back(formula.factors[f].size);
  const auto found = parted_size(sizes, outer, count);
  return found ? std::optional(PartedFactor{dim[found->at], found->outer}) : std::nullopt;
}

// The parts of an operand of which the factor is cut; nullopt where it has it twice.
std::optional<RowParts> operand_parts(const Formula& formula, const FormulaOperand& operand, const PartedFactor& cut,
                                      int64_t count) {
  RowParts parts{count, 0};
  int64_t before = 1;
  for (const std::vector<int>& dim : operand.dims) {
    for (int f : dim) {
      if (f == cut.factor && parts.before > 0) return std::nullopt;
      if (f == cut.factor) parts.before = before * cut.outer;
      before *= formula.factors[f].size;
    }
  }
  return parts;
}

std::optional<NodeParts> parts_of_collective(const Node& node, bool is_output, const RowParts& parts) {
  if (node.inputs.size() != 1) return std::nullopt;
  const int64_t ranks = node.attrs.i("parts");
  int64_t in = parts.before, out = parts.before;
  if (node.op->collective == CollectiveOp::kAllGather) {
    if (is_output && out % ranks != 0) return std::nullopt;
    is_output ? in /= ranks : out *= ranks;
  } else if (node.op->collective == CollectiveOp::kReduceScatter) {
    if (!is_output && in % ranks != 0) return std::nullopt;
    is_output ? in *= ranks : out /= ranks;
  } else if (node.op->collective != CollectiveOp::kAllReduce) {
    return std::nullopt;
  }
  return NodeParts{{{parts.count, in}}, {{parts.count, out}}};
}

}  // namespace

std::optional<PartedDim> parted_dim(const Shape& shape, const RowParts& parts) {
  const auto found = parted_size(shape, parts.before, parts.count);
  if (!found) return std::nullopt;
  return PartedDim{found->at, found->outer, shape[found->at] / found->outer / parts.count};
}

Shape part_shape(Shape shape, const RowParts& parts) {
  if (parts.before > 0) shape[parted_dim(shape, parts)->dim] /= parts.count;
  return shape;
}

ValueId take_part(Builder& b, ValueId whole, const RowParts& parts, int64_t index) {
  const PartedDim at = *parted_dim(b.shape(whole), parts);
  const Shape part = part_shape(b.shape(whole), parts);
  Shape apart = b.shape(whole);
  size_t dim = at.dim;
  if (at.outer > 1) {
    apart[dim] /= at.outer;
    apart.insert(apart.begin() + static_cast<int64_t>(dim), at.outer), ++dim;
  }
  std::vector<int64_t> starts(apart.size(), 0), strides(apart.size(), 1), limits = apart;
  starts[dim] = index * at.inner, limits[dim] = starts[dim] + at.inner;
  const ValueId taken =
      b.emit("slice", {b.reshape(whole, std::move(apart))},
             {{"starts", std::move(starts)}, {"limits", std::move(limits)}, {"strides", std::move(strides)}});
  return b.reshape(taken, part);
}

ValueId join_parts(Builder& b, std::vector<ValueId> of, const RowParts& parts, const Shape& whole) {
  const PartedDim at = *parted_dim(whole, parts);
  size_t dim = at.dim;
  if (at.outer > 1) {
    Shape apart = whole;
    apart[dim] = at.inner;
    apart.insert(apart.begin() + static_cast<int64_t>(dim), at.outer), ++dim;
    for (ValueId& v : of) v = b.reshape(v, apart);
  }
  return b.reshape(b.emit("concat", std::move(of), {{"dim", static_cast<int64_t>(dim)}, {"apart", int64_t{1}}}), whole);
}

std::optional<NodeParts> parts_of_node(const Graph& graph, const Node& node, ValueId value, const RowParts& parts) {
  const auto at_output = std::find(node.outputs.begin(), node.outputs.end(), value);
  const bool is_output = at_output != node.outputs.end();
  NodeParts out;
  if (node.op->communicates) {
    auto cut = parts_of_collective(node, is_output, parts);
    if (!cut) return std::nullopt;
    out = *std::move(cut);
  } else {
    const Formula formula = bound_formula(graph, node);
    const auto is_present = [](ValueId v) { return v != kNoValue; };
    const auto at_input = std::find(node.inputs.begin(), node.inputs.end(), value);
    const FormulaOperand& given =
        is_output ? formula.outputs[static_cast<size_t>(at_output - node.outputs.begin())]
                  : formula.inputs[static_cast<size_t>(std::count_if(node.inputs.begin(), at_input, is_present))];
    const auto dim = parted_dim(graph.type(value).shape, parts);
    if (!dim) return std::nullopt;
    const auto cut = parted_factor(formula, given.dims[dim->dim], dim->outer, parts.count);
    if (!cut || formula.factors[cut->factor].role != FactorRole::kParallel) return std::nullopt;
    size_t present = 0;
    for (ValueId v : node.inputs) {
      const auto in = v == kNoValue ? RowParts{parts.count, 0}
                                    : operand_parts(formula, formula.inputs[present++], *cut, parts.count);
      if (!in) return std::nullopt;
      out.inputs.push_back(*in);
    }
    for (const FormulaOperand& result : formula.outputs) {
      const auto of = operand_parts(formula, result, *cut, parts.count);
      if (!of || of->before == 0) return std::nullopt;
      out.outputs.push_back(*of);
    }
  }
  // A value that stands for two operands is cut the same way as both.
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if (node.inputs[k] == value && out.inputs[k] != parts) return std::nullopt;
    if (out.inputs[k].before > 0 && !parted_dim(graph.type(node.inputs[k]).shape, out.inputs[k])) return std::nullopt;
  }
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    if (!parted_dim(graph.type(node.outputs[k]).shape, out.outputs[k])) return std::nullopt;
  }
  return out;
}

}  // namespace partita
