// Every output is computed for every point of one domain, by walking back from it: a node of the group (or a free one)
// becomes operations on its inputs at composed index maps, anything else a load. So a nest is right whatever the
// domain; what the checks guard is that nothing expensive is computed twice.
//
//   y = x / reduce_sum(x, [1], keep) over x [4, 8]: domain [4, 8], columns {1}
//   y at (i, j): x at (i, j), and the sum at (i, 0): a reduction over the columns of x at (i, j)
//
// Padding and concatenation choose by index. Instead of selecting at every point, the domain is cut into boxes in each
// of which the choice is settled. Boxes next to each other that read the same are one nest with a store for each: both
// halves of a rotation of (x1, x2) are made of both.
#include "codegen/fuse/nest_builder.h"

#include <algorithm>
#include <deque>

#include "codegen/fuse/nest_assembly.h"
#include "codegen/fuse/nest_domain.h"
#include "codegen/fuse/nest_values.h"
#include "codegen/fuse/recompute_guard.h"

namespace partita {
namespace {

constexpr int kMaxNodes = 400, kMaxOperands = 40, kMaxBoxes = 32;
constexpr size_t kMaxLoops = 64;

class GroupBuilder {
 public:
  GroupBuilder(const GroupView& group, Domain domain, BuildFailure& failure)
      : group_(group), code_(group.code), domain_(std::move(domain)), failure_(failure) {}

  std::optional<GroupCode> run() {
    GroupCode code;
    std::deque<Box> boxes{whole_domain()};
    int built = 0, limit = group_.is_single() ? 1 << 20 : kMaxBoxes;
    while (!boxes.empty()) {
      Box box = std::move(boxes.front());
      boxes.pop_front();
      NestValues values(group_, domain_, box);
      build_box(values);
      if (values.outcome() == Outcome::kBuilt && ++built > limit) values.fail("too many boxes");
      if (values.outcome() == Outcome::kRefine && box.loops.size() > kMaxLoops) values.fail("too many loops");
      if (values.outcome() == Outcome::kFailed) {
        failure_ = {values.why, values.obstacle};
        return std::nullopt;
      }
      if (values.outcome() != Outcome::kBuilt) divide(box, values, boxes);
    }
    for (NestPart& part : parts_) assemble(code_, std::move(part), code);
    if (code_.strict && !keeps_orders(code)) return std::nullopt;
    return code;
  }

 private:
  // Whether the group's reductions have the order of their shapes. On its own a reduction of a value that lies in
  // memory has it.
  bool keeps_orders(const GroupCode& code) {
    for (NodeId n : group_.nodes) {
      if (code_.roles[n] != NodeRole::kReduction) continue;
      const Node& node = code_.graph.nodes[n];
      const ValueId of = code_.storage(node.inputs[0]);
      const bool loaded = !code_.is_free(of);
      if (keeps_order(node, code.nests.front().nest) || (group_.is_single() && loaded)) continue;
      failure_ = {"a reduction in another order", loaded ? kNoValue : of};
      return false;
    }
    return true;
  }

  bool keeps_order(const Node& node, const LoopNest& nest) const {
    const Shape& shape = code_.shape(node.inputs[0]);
    const ReductionOrder order =
        strict_order(shape, reduced_dims(node, shape.size()), code_.graph.type(node.outputs[0]).dtype);
    if (order == ReductionOrder{}) return true;
    if (order.rows == 0) return column_order(nest) == order;
    return std::any_of(nest.folds.begin(), nest.folds.end(),
                       [&](const NestFold& f) { return fold_order(nest, f) == order; });
  }

  Box whole_domain() const {
    Box box;
    int64_t step = 1;
    for (size_t d = domain_.shape.size(); d-- > 0; step *= domain_.shape[d]) {
      box.loops.insert(box.loops.begin(), {domain_.shape[d], domain_.column[d], step});
    }
    return box;
  }

  // Puts back a box with a loop in two, or two boxes.
  static void divide(Box& box, const NestValues& values, std::deque<Box>& boxes) {
    if (values.outcome() == Outcome::kRefine) {
      BoxLoop& outer = box.loops[values.split.loop];
      BoxLoop inner{values.split.inner, outer.column, outer.step};
      outer.size /= inner.size;
      outer.step *= inner.size;
      box.loops.insert(box.loops.begin() + values.split.loop + 1, inner);
      boxes.push_front(std::move(box));
      return;
    }
    Box high = box;
    BoxLoop& rest = high.loops[values.cut_loop];
    high.origin += rest.step * values.cut_at;
    rest.size -= values.cut_at;
    box.loops[values.cut_loop].size = values.cut_at;
    boxes.push_front(std::move(high));
    boxes.push_front(std::move(box));
  }

  void build_box(NestValues& values) {
    NestPart part;
    for (ValueId v : group_.outputs) {
      if (is_fold(group_, domain_, v)) {
        part.folds.push_back({v, make_fold(values, v)});
      } else {
        part.stores.push_back({v, make_store(values, v)});
      }
      if (values.outcome() != Outcome::kBuilt) return;
    }
    if (!group_.is_single()) {
      if (values.nest.nodes.size() > kMaxNodes) values.fail("too many operations");
      if (values.operands.size() + group_.outputs.size() > kMaxOperands) values.fail("too many operands");
      if (const char* repeated = repeated_work(code_, values)) values.fail(repeated);
    }
    if (values.outcome() != Outcome::kBuilt) return;
    for (size_t k = 0; k < values.nest.sizes.size(); ++k) part.column.push_back(values.is_column(k));
    part.nest = std::move(values.nest);
    part.loads = std::move(values.operands);
    if (parts_.empty() || !join(parts_.back(), part, kMaxOperands)) parts_.push_back(std::move(part));
  }

  // At full size in the domain's own order (transposing nests read, not write, in another), or once a row.
  NestStore make_store(NestValues& values, ValueId v) {
    const Shape& shape = code_.shape(v);
    int64_t n = elements(shape);
    bool full = n == elements(domain_.shape);
    if (!full && n != values.points(true, false)) return values.fail("outputs of different sizes"), NestStore{};
    IndexMap map;
    if (values.fit(values.point_number(true, full), shape, map) != Outcome::kBuilt) return {};
    Affine at = linearize(map, shape, values.nest.sizes.size());
    return {values.generate(v, map), {-1, at.coefficients, at.offset}};
  }

  // A reduction of all rows: of the values at each column, or of everything (then each row is reduced first).
  NestFold make_fold(NestValues& values, ValueId v) {
    const Node& node = code_.graph.nodes[code_.producer(v)];
    const Shape& shape = code_.shape(node.inputs[0]);
    auto dims = reduced_dims(node, shape.size());
    bool rows = true, columns = true, no_columns = true;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      if (!domain_.column[d])
        rows = rows && dims[d];
      else if (dims[d])
        no_columns = false;
      else
        columns = false;
    }
    NestFold fold{.reduce = reduce_kind_of(*node.op)};
    if (!rows || (!columns && !no_columns)) return values.fail("a reduction across rows and columns"), fold;
    if (no_columns && values.points(false, true) > kWideFold) return values.fail("a fold of too many columns"), fold;
    IndexMap map;
    if (values.fit(values.point_number(true, true), shape, map) != Outcome::kBuilt) return fold;
    fold.node = values.generate(node.inputs[0], map);
    if (values.outcome() != Outcome::kBuilt) return fold;
    if (no_columns) {
      fold.access.strides = values.point_number(false, true).coefficients;
      fold.extent = values.points(false, true);
    } else {
      NestNode reduce{.op = NestOp::kReduce,
                      .scalar = {.op = ScalarOp::kInput, .type = code_.graph.type(v).dtype, .a = fold.node},
                      .reduce = fold.reduce};
      fold.node = values.push(std::move(reduce));
      fold.access.strides.assign(values.nest.sizes.size(), 0);
    }
    return fold;
  }

  const GroupView& group_;
  const CodeGraph& code_;
  Domain domain_;
  BuildFailure& failure_;
  std::vector<NestPart> parts_;  // of the boxes so far
};

}  // namespace

std::optional<GroupCode> build_group(const CodeGraph& graph, std::span<const NodeId> nodes,
                                     std::span<const ValueId> outputs, BuildFailure* failure) {
  BuildFailure ignored;
  BuildFailure& fault = failure != nullptr ? *failure : ignored;
  GroupView group{graph, nodes, outputs};
  auto domain = choose_domain(group, fault.why);
  if (!domain) return std::nullopt;
  if (elements(domain->shape) == 0) return empty_group(group, fault.why);
  return GroupBuilder(group, *std::move(domain), fault).run();
}

}  // namespace partita
