#include "tools/verify/graph/sum_order.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/nest/reduction_order.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

bool is_micro_batch(Segment s) { return s == Segment::kForward || s == Segment::kBackward; }

// The weights of the axes in the number of a part of `each` elements; empty where they make up no number below `parts`.
std::vector<int64_t> weights(const IndexMap& layout, const Mesh& mesh, int64_t each, int64_t parts) {
  std::vector<AxisDigit> digits = layout.axes;
  std::sort(digits.begin(), digits.end(), [](const auto& a, const auto& b) { return a.stride < b.stride; });
  std::vector<int64_t> weight(mesh.axes.size(), 0);
  int64_t next = 1;
  for (const AxisDigit& d : digits) {
    const auto axis = static_cast<size_t>(d.axis);
    if (d.divisor != 1 || d.size != mesh.axes[axis].size || d.stride != next * each || weight[axis] != 0) return {};
    weight[axis] = next;
    next *= d.size;
  }
  return next == parts ? weight : std::vector<int64_t>{};
}

// Library kernels that compute what has one index along some of their operands' dimensions (a head of a sample, a
// block) by itself, in an order that the sizes of the others decide: these dimensions. Empty: all, for nothing is added
// up within a tensor.
const std::map<std::string_view, std::set<size_t>> kApart = {
    {"accumulate_tree", {}}, {"attention", {0, 1}}, {"attention_grad", {0, 1}}, {"block_squares", {1}}};

bool differ_along(const Shape& a, const Shape& b, const std::set<size_t>& dims) {
  if (dims.empty()) return true;
  for (size_t d = 0; d < a.size(); ++d) {
    if (a[d] != b[d] && !dims.count(d)) return false;
  }
  return true;
}

// The orders of all reductions of one use of an op.
absl::StatusOr<std::vector<ReductionOrder>> orders_of(const Node& node, const Attrs& attrs,
                                                      const std::vector<TensorType>& types) {
  Builder b;
  std::vector<ValueId> inputs;
  size_t present = 0;
  for (ValueId v : node.inputs) {
    inputs.push_back(v == kNoValue ? kNoValue : b.input(cat("x", present), types[present], InputKind::kData));
    present += v != kNoValue;
  }
  auto made = b.try_emit(*node.op, inputs, attrs);
  if (!made.ok()) return differs(made.status().message());
  std::vector<NodeId> from;
  PARTITA_ASSIGN_OR_RETURN(const Graph g, expanded(std::move(b).finish(), from));
  std::vector<ReductionOrder> orders;
  for (const Node& n : g.nodes) {
    if (!n.op->name.starts_with("reduce_")) continue;
    const TensorType& type = g.type(n.inputs[0]);
    std::vector<bool> reduced(type.shape.size(), false);
    for (int64_t d : n.attrs.ints("dims")) reduced[static_cast<size_t>(d)] = true;
    orders.push_back(strict_order(type.shape, reduced, g.type(n.outputs[0]).dtype));
  }
  return orders;
}

}  // namespace

SumOrder::SumOrder(const SerialValues& serial, const Mesh& mesh, int time, const FixedSums& fixed)
    : serial_(serial),
      mesh_(mesh),
      time_(time),
      parts_(fixed.samples),
      blocks_(fixed.tensor),
      weight_(mesh.axes.size(), 0),
      read_in_a_batch_(static_cast<size_t>(serial.roots()), false) {
  for (const Node& node : serial.graph().nodes) {
    if (!is_micro_batch(node.segment) || movement_of(*node.op) != Movement::kNone || node.op->sums_micro_batches)
      continue;
    for (ValueId v : node.inputs) {
      if (v != kNoValue && serial.layout(v).root >= 0)
        read_in_a_batch_[static_cast<size_t>(serial.layout(v).root)] = true;
    }
  }
}

absl::Status SumOrder::take_input(const Shape& shape, const IndexMap& layout, int64_t samples) {
  if (parts_ == 0 || shape.empty()) return absl::OkStatus();
  if (shape[0] != samples || samples % parts_ != 0)
    return differs("expected all ", samples, " samples of a step in one run of the serial program, ", parts_,
                   " equal parts, found ", shape[0]);
  const std::vector<int64_t> now = weights(layout, mesh_, elements(shape) / parts_, parts_);
  if (now.empty() && layout.axes.empty()) return absl::OkStatus();  // all samples
  if (now.empty() || (known_ && now != weight_))
    return differs("expected one of ", parts_, " parts of the samples, in the order of ranks and micro-batches, found ",
                   to_string(layout, mesh_));
  weight_ = now;
  known_ = true;
  return absl::OkStatus();
}

// What is made of samples is of one part, or of all of them: so each rank computes the same, whatever the ranks.
absl::Status SumOrder::check_apart(const IndexMap& x) const {
  int of = 0, all = 0;
  for (size_t a = 0; a < weight_.size(); ++a) {
    if (weight_[a] == 0 || mesh_.axes[a].size == 1) continue;
    ++all;
    of += x.depends_on(static_cast<int>(a)) || x.is_partial(static_cast<int>(a));
  }
  if (of == 0 || of == all) return absl::OkStatus();
  return differs("expected a value of one part of the samples, or of all of them, found ", to_string(x, mesh_));
}

absl::Status SumOrder::check_node(const Node& node, const Graph& local, const std::vector<IndexMap>& operands,
                                  const std::vector<IndexMap>& results) const {
  if (parts_ == 0) return absl::OkStatus();
  if (node.op->sums_micro_batches) return check_accumulation(node, operands.back());
  for (const IndexMap& x : operands) {
    if (is_micro_batch(node.segment)) PARTITA_RETURN_IF_ERROR(check_apart(x));
    if (!is_micro_batch(node.segment) && !x.partial.empty())
      return differs("expected a complete sum, whose order is fixed, found ", to_string(x, mesh_));
  }
  for (size_t k = 0; k < results.size(); ++k) {
    if (results[k].kind != PartialKind::kSum || !is_float(local.type(node.outputs[k]).dtype)) continue;
    for (int a : results[k].partial) {
      if (!divides_samples(a)) continue;  // check_blocks()
      if (!is_micro_batch(node.segment))
        return differs("expected a sum in a fixed order, found one that ranks of ", name(a), " have parts of");
    }
  }
  return absl::OkStatus();
}

absl::Status SumOrder::check_accumulation(const Node& node, const IndexMap& term) const {
  if (node.op->name != "accumulate_tree")
    return differs("expected a sum over micro-batches in a fixed order (accumulate_tree), found ", node.op->name);
  if (time_ < 0 || !divides_samples(time_))
    return differs("expected micro-batches that are parts of one run, found runs side by side");
  return check_sum(term, {time_}, DType::kF32);
}

absl::Status SumOrder::check_sum(const IndexMap& x, const std::vector<int>& axes, DType type) const {
  if (parts_ == 0 || x.kind != PartialKind::kSum || !is_float(type)) return absl::OkStatus();
  if (dtype_size(type) < 4)
    return differs("expected a sum in f32 or wider, found ", dtype_name(type), ", which rounds what each rank has");
  if (std::any_of(axes.begin(), axes.end(), [&](int a) { return divides_features(a); })) {
    if (axes.size() == 1) return absl::OkStatus();  // made by check_product()'s leave
    return differs("expected a sum over the blocks of a product alone, found one over ", axes.size(), " axes");
  }
  const bool read = x.root >= 0 && read_in_a_batch_[static_cast<size_t>(x.root)];
  if (read && !(axes.size() == 1 && axes[0] == time_))
    return differs("expected a sum of what the whole backward part has made, found one that it goes on with");
  for (size_t k = 0; k < axes.size(); ++k) {
    if (!divides_samples(axes[k]))
      return differs("expected a sum over parts of the samples, found one over ", name(axes[k]));
    const int64_t weight = weight_[static_cast<size_t>(axes[k])];
    for (int a : x.partial) {
      const bool later = std::find(axes.begin(), axes.end(), a) == axes.end();
      if (later && weight_[static_cast<size_t>(a)] < weight)
        return differs("expected the sum over ", name(a), ", whose samples are nearer, before that over ",
                       name(axes[k]));
    }
    // A group's ranks are numbered by their coordinates, the first axis outermost.
    if (k > 0 && (axes[k] < axes[k - 1] || weight >= weight_[static_cast<size_t>(axes[k - 1])]))
      return differs("expected a group whose ranks are in the order of their samples, found one over ",
                     name(axes[k - 1]), " and ", name(axes[k]));
  }
  return absl::OkStatus();
}

absl::Status SumOrder::check_blocks(NodeId s, const Node& node, const Graph& local,
                                    const std::vector<IndexMap>& operands, const std::vector<IndexMap>& results) const {
  if (parts_ == 0) return absl::OkStatus();
  auto divided = [&](const IndexMap& x, bool partial) {
    for (size_t a = 0; a < mesh_.axes.size(); ++a) {
      const int axis = static_cast<int>(a);
      if (divides_features(axis) && (partial ? x.is_partial(axis) : x.depends_on(axis))) return axis;
    }
    return -1;
  };
  bool any = false;
  PARTITA_RETURN_IF_ERROR(check_count(s));
  for (size_t k = 0; k < operands.size(); ++k) {
    if (node.inputs[k] == kNoValue) continue;
    if (divided(operands[k], true) >= 0 && is_float(local.type(node.inputs[k]).dtype))
      return differs("expected the complete sum of a product's blocks, found ", to_string(operands[k], mesh_));
    any = any || divided(operands[k], false) >= 0;
  }
  for (size_t k = 0; k < results.size(); ++k) {
    const int axis = divided(results[k], true);
    if (axis < 0 || !is_float(local.type(node.outputs[k]).dtype)) continue;
    if (results[k].partial != std::vector<int>{axis})
      return differs("expected a sum over the blocks of a product alone, found ", to_string(results[k], mesh_));
    PARTITA_RETURN_IF_ERROR(check_product(s, node, local, operands[0], axis));
  }
  return any ? check_reductions(s, node, local, operands, results) : absl::OkStatus();
}

// That a product of the serial program has as many blocks as are asked for, if any.
absl::Status SumOrder::check_count(NodeId s) const {
  const Node& whole = serial_.graph().nodes[static_cast<size_t>(s)];
  const int64_t block = whole.op->name == "matmul" ? whole.attrs.i("block", 0) : 0;
  if (block == 0) return absl::OkStatus();
  const Shape& shape = serial_.graph().type(whole.inputs[0]).shape;
  const int64_t inner = shape[shape.size() - (whole.attrs.i("transpose_a", 0) != 0 ? 2 : 1)];
  if (inner / whole.attrs.i("groups", 1) / block == blocks_) return absl::OkStatus();
  return differs("expected a product whose inner dimension is ", blocks_, " blocks, found one of ", inner,
                 " elements, ", block, " a block");
}

// Along the inner dimension of its first operand `axis` divides whole blocks, and nothing else does.
absl::Status SumOrder::check_product(NodeId s, const Node& node, const Graph& local, const IndexMap& x,
                                     int axis) const {
  const int64_t block = node.attrs.i("block", 0), groups = node.attrs.i("groups", 1);
  const int64_t ways = mesh_.axes[static_cast<size_t>(axis)].size;
  if (node.op->name != "matmul" || block == 0)
    return differs("expected a sum in a fixed order, found one that ranks of ", name(axis), " have parts of");
  if (blocks_ % ways != 0) return differs("expected at most ", blocks_, " ranks along ", name(axis), ", found ", ways);
  const ValueId whole = serial_.graph().nodes[static_cast<size_t>(s)].inputs[0];
  const Shape& shape = local.type(node.inputs[0]).shape;
  auto parts = pieces_of(serial_.layout(whole), serial_.graph().type(whole).shape, x, shape);
  if (!parts.ok()) return differs(parts.status().message());
  const size_t inner = shape.size() - (node.attrs.i("transpose_a", 0) != 0 ? 2 : 1);
  int64_t before = 1, after = 1;
  bool found = false, right = true;
  for (const Piece& p : (*parts)[inner]) {
    const bool cut = p.kind == Piece::Kind::kAxis;
    right = right && (cut ? !found && p.axis == axis && p.divisor == 1 && p.size == ways
                          : p.kind == Piece::Kind::kLocal && p.local == p.size);
    if (!cut) (found ? after : before) *= p.size;
    found = found || cut;
  }
  if (!found || !right || before != groups || after % block != 0)
    return differs("expected ", ways, " ranks that have blocks of ", block, " elements which follow one another in ",
                   groups, " groups, found ", to_string(*parts, mesh_));
  return absl::OkStatus();
}

// The shape that a value would have if axes that divide no samples did not divide it.
absl::StatusOr<Shape> SumOrder::undivided(ValueId serial, const IndexMap& x, const Shape& local) const {
  auto parts = pieces_of(serial_.layout(serial), serial_.graph().type(serial).shape, x, local);
  if (!parts.ok()) return differs(parts.status().message());
  Shape shape = local;
  for (size_t d = 0; d < shape.size(); ++d) {
    for (const Piece& p : (*parts)[d]) {
      if (p.kind == Piece::Kind::kAxis && divides_features(p.axis)) shape[d] *= p.size;
    }
  }
  return shape;
}

// Of a node whose operands such axes divide: that what it adds up it adds up as the whole would.
absl::Status SumOrder::check_reductions(NodeId s, const Node& node, const Graph& local,
                                        const std::vector<IndexMap>& operands,
                                        const std::vector<IndexMap>& results) const {
  if (node.op->name == "matmul") {
    if (node.attrs.has("block")) return absl::OkStatus();
    return differs("expected a product whose order does not depend on its sizes (block), found one in any");
  }
  const Node& whole = serial_.graph().nodes[static_cast<size_t>(s)];
  std::vector<TensorType> here, there;
  std::vector<Shape> in, out;
  for (size_t k = 0; k < operands.size(); ++k) {
    if (node.inputs[k] == kNoValue) {
      in.emplace_back();
      continue;
    }
    here.push_back(local.type(node.inputs[k]));
    PARTITA_ASSIGN_OR_RETURN(Shape shape, undivided(whole.inputs[k], operands[k], here.back().shape));
    there.push_back({here.back().dtype, shape});
    if (node.op->kernel &&
        (!kApart.count(node.op->name) || !differ_along(here.back().shape, shape, kApart.at(node.op->name))))
      return differs("expected a kernel whose sums do not depend on what else it computes, found ", node.op->name,
                     " of a part of ", to_string(there.back()));
    in.push_back(std::move(shape));
  }
  for (size_t k = 0; k < results.size(); ++k) {
    PARTITA_ASSIGN_OR_RETURN(Shape shape, undivided(whole.outputs[k], results[k], local.type(node.outputs[k]).shape));
    out.push_back(std::move(shape));
  }
  if (node.op->kernel) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const auto orders, orders_of(node, node.attrs, here));
  PARTITA_ASSIGN_OR_RETURN(const auto expected,
                           orders_of(node, localized_attrs(*node.op, whole.attrs, in, out), there));
  if (orders == expected) return absl::OkStatus();
  return differs("expected a sum in the order that it has undivided, found one whose order the ranks' part decides");
}

}  // namespace partita::verifier
