// A gather g of two products p and q, whose results' product s is scattered, in two parts:
//
//   x -> g -> p, q -> mul -> s -> scatter     becomes     x1 x2 -> g1 g2 | p1 q1 mul1 s1 scatter1 | p2 q2 mul2 s2 …
//
// Gathers start where they stood. The rest of a part stands together, at the first node that needs all rows of some
// result, so that communication has the order in which it is waited for.
#include "partitioner/communicate/overlap_products.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "partitioner/communicate/deferrable.h"
#include "partitioner/communicate/row_parts.h"
#include "partitioner/communicate/state_gathers.h"

namespace partita {
namespace {

// The collectives that a micro-batch waits for within a pass.
class WaitedFor {
 public:
  explicit WaitedFor(const LocalProgram& program) : gathers_(program.graph), results_(program) {}

  bool is_gather(const Node& node) const {
    return node.op->collective == CollectiveOp::kAllGather && is_one(node) && !gathers_.is_gather(node);
  }
  bool is_sum(const Node& node) const {
    return (node.op->collective == CollectiveOp::kReduceScatter || node.op->collective == CollectiveOp::kAllReduce) &&
           node.attrs.s("reduce") == "sum" && is_one(node);
  }

 private:
  bool is_one(const Node& node) const {
    return (node.segment == Segment::kForward || node.segment == Segment::kBackward) && node.inputs.size() == 1 &&
           results_.is_joint(node) && !results_.are_deferrable(node) && !results_.are_accumulated(node);
  }

  const StateGathers gathers_;
  const DeferrableResults results_;
};

using Pass = std::pair<Segment, int32_t>;
Pass pass_of(const LocalProgram& program, const Node& node) { return {node.segment, program.stage.phase(node)}; }

bool is_product(const Node& node) { return node.op->work == WorkKind::kMatrix; }

// Whether it may be computed part by part between products.
bool is_light(const Node& node) {
  return (node.op->scalar != nullptr || node.op->view || node.op->moves) && !node.op->kernel && !node.op->draws &&
         !node.op->sums_micro_batches;
}

// What a sum of backward does not wait for stands behind it: the gradients of weights above all, which need all rows,
// are computed while it travels.
class Delaying {
 public:
  explicit Delaying(const LocalProgram& program)
      : program_(program), graph_(program.graph), waited_for_(program), needed_(graph_.values.size(), false) {}

  Graph run() && {
    Graph out = graph_;
    out.nodes.clear();
    for (size_t begin = 0, end = 0; begin < graph_.nodes.size(); begin = end) {
      const Node& first = graph_.nodes[begin];
      bool sum = false;
      for (end = begin; end < graph_.nodes.size() && !sum && pass(graph_.nodes[end]) == pass(first); ++end)
        sum = waited_for_.is_sum(graph_.nodes[end]);
      const std::vector<bool> before = first_of(begin, end, sum && first.segment == Segment::kBackward);
      for (bool now : {true, false}) {
        for (size_t n = begin; n < end; ++n) {
          if (before[n - begin] == now) out.nodes.push_back(graph_.nodes[n]);
        }
      }
    }
    renumber_producers(out);
    return out;
  }

 private:
  Pass pass(const Node& node) const { return pass_of(program_, node); }

  // Of the nodes from `begin` to the sum before `end`: those that it, and others that are waited for, are made of.
  std::vector<bool> first_of(size_t begin, size_t end, bool delays) {
    std::vector<bool> first(end - begin, !delays);
    for (size_t n = end; delays && n-- > begin;) {
      const Node& node = graph_.nodes[n];
      const bool message = node.op->communicates && !node.op->collective;  // stages tell them by their order
      first[n - begin] = message || waited_for_.is_sum(node) || waited_for_.is_gather(node) ||
                         std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return needed_[v]; });
      for (ValueId v : node.inputs) {
        if (first[n - begin] && v != kNoValue) needed_[v] = true;
      }
    }
    return first;
  }

  const LocalProgram& program_;
  const Graph& graph_;
  const WaitedFor waited_for_;
  std::vector<bool> needed_;  // per value, by what stands first
};

class Cutting {
 public:
  Cutting(const LocalProgram& program, int64_t count)
      : program_(program),
        graph_(program.graph),
        waited_for_(program),
        count_(count),
        cut_(graph_.nodes.size()),
        parts_(graph_.values.size(), RowParts{count, 0}),
        r_(graph_),
        made_(graph_.values.size()) {
    follow_gathers();
    trace_sums();
    drop_unled();
    drop_useless();
    drop_unled();
  }

  int64_t products() const {
    int64_t n = 0;
    for (size_t k = 0; k < cut_.size(); ++k) n += cut_[k].has_value() && is_product(graph_.nodes[k]);
    return n;
  }

  Graph run() && {
    for (const Node& node : graph_.nodes) {
      if (!cut(node)) {
        const bool other_pass = !waiting_.empty() && pass(*waiting_[0]) != pass(node);
        const bool reads =
            std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return is_waiting(v); });
        if (other_pass || reads || is_product(node)) compute_waiting();
        for (ValueId v : node.inputs) {
          if (v != kNoValue) whole(v, node);
        }
        r_.copy(node);
      } else if (waited_for_.is_gather(node)) {
        if (is_waiting(node.inputs[0])) compute_waiting();
        for (int64_t k = 0; k < count_; ++k) compute(node, k);
      } else {
        for (size_t k = 0; k < node.inputs.size(); ++k) {
          if (is_waiting(node.inputs[k]) && parts_[node.inputs[k]] != cut(node)->inputs[k]) compute_waiting();
        }
        waiting_.push_back(&node);
      }
    }
    compute_waiting();
    for (const GraphOutput& o : graph_.outputs) whole_at_end(o.value);
    for (const State& s : graph_.states) whole_at_end(s.next);
    return std::move(r_).finish();
  }

 private:
  Pass pass(const Node& node) const { return pass_of(program_, node); }
  std::optional<NodeParts>& cut(const Node& node) { return cut_[static_cast<size_t>(&node - graph_.nodes.data())]; }
  bool is_cut(ValueId v) const { return v != kNoValue && parts_[v].before > 0; }
  // Whether the value is cut, and made in the pass of the node by what goes on to it part by part.
  bool is_cut_beside(ValueId v, const Node& node) const {
    const Node* made = v == kNoValue ? nullptr : graph_.producer(v);
    return made != nullptr && is_cut(v) && pass(*made) == pass(node) && !waited_for_.is_sum(*made);
  }
  int64_t size(ValueId v) const { return elements(graph_.type(v).shape); }
  bool may_cut(const Node& node) const {
    return !node.weight_gradient && node.device == DeviceKind::kDefault && (is_light(node) || is_product(node));
  }
  // A product's rows are those of its first operand.
  std::optional<NodeParts> cut_by(const Node& node, ValueId v, const RowParts& of) const {
    auto found = parts_of_node(graph_, node, v, of);
    if (found && is_product(node) && found->inputs[0].before == 0) found.reset();
    return found;
  }
  // Whether operand k comes part by part.
  bool follows(const Node& node, size_t k, const NodeParts& parts) const {
    return is_cut_beside(node.inputs[k], node) && parts_[node.inputs[k]] == parts.inputs[k];
  }
  void take(const Node& node, NodeParts parts) {
    for (size_t k = 0; k < node.outputs.size(); ++k) parts_[node.outputs[k]] = parts.outputs[k];
    cut(node) = std::move(parts);
  }
  void leave(const Node& node) {
    for (ValueId v : node.outputs) parts_[v].before = 0;
    cut(node).reset();
  }

  // The parts of a collective's rows on one rank: of the outermost dimension that they divide, but for the last.
  std::optional<RowParts> rows(const Shape& shape) const {
    int64_t before = 1;
    for (size_t d = 0; d + 1 < shape.size(); before *= shape[d++]) {
      if (shape[d] % count_ == 0) return RowParts{count_, before};
    }
    return std::nullopt;
  }

  // From gathers on, as far as each part is computed by itself.
  void follow_gathers() {
    for (const Node& node : graph_.nodes) {
      std::optional<NodeParts> found;
      if (waited_for_.is_gather(node)) {
        const auto of = rows(graph_.type(node.inputs[0]).shape);
        if (of) found = cut_by(node, node.inputs[0], *of);
      } else if (may_cut(node) || waited_for_.is_sum(node)) {
        for (ValueId v : node.inputs) {
          if (!found && is_cut_beside(v, node)) found = cut_by(node, v, parts_[v]);
        }
      }
      if (found) take(node, *std::move(found));
    }
  }

  // From sums that were not come by back to the products that they wait for.
  void trace_sums() {
    std::vector<RowParts> wanted(graph_.values.size(), RowParts{count_, 0});
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (cut_[n] || node.outputs.size() != 1) continue;
      RowParts of = wanted[node.outputs[0]];
      if (waited_for_.is_sum(node)) {
        const auto own = rows(graph_.type(node.outputs[0]).shape);
        if (own) of = *own;
      } else if (!may_cut(node)) {
        continue;
      }
      auto found = of.before == 0 ? std::nullopt : cut_by(node, node.outputs[0], of);
      if (!found) continue;
      for (size_t k = 0; k < node.inputs.size() && !is_product(node); ++k) {
        const Node* made = node.inputs[k] == kNoValue ? nullptr : graph_.producer(node.inputs[k]);
        if (made != nullptr && pass(*made) == pass(node) && found->inputs[k].before > 0)
          wanted[node.inputs[k]] = found->inputs[k];
      }
      take(node, *std::move(found));
    }
  }

  // What no gather and no product leads to stays whole, too.
  void drop_unled() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      bool led = !cut_[n] || is_product(node) || waited_for_.is_gather(node);
      for (size_t k = 0; k < node.inputs.size() && !led; ++k) led = follows(node, k, *cut_[n]);
      if (!led) leave(node);
    }
  }

  // What leads to no product and to no sum stays whole.
  void drop_useless() {
    std::vector<bool> useful(graph_.values.size(), false);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (!cut_[n]) continue;
      const bool leads = is_product(node) || waited_for_.is_sum(node) ||
                         std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return useful[v]; });
      if (!leads) leave(node);
      for (size_t k = 0; leads && k < node.inputs.size(); ++k) {
        // What each of a product's rows has one number of is not worth a part.
        const ValueId v = node.inputs[k];
        const bool of_rows = is_product(node) || node.op->communicates || size(v) == size(node.outputs[0]);
        if (follows(node, k, *cut_[n]) && of_rows) useful[v] = true;
      }
    }
  }

  bool is_waiting(ValueId v) const { return is_cut(v) && made_[v].empty(); }

  void compute_waiting() {
    const std::vector<const Node*> nodes = std::exchange(waiting_, {});
    for (int64_t k = 0; k < count_; ++k) {
      for (const Node* node : nodes) compute(*node, k);
    }
  }

  // Part `index` of a node.
  void compute(const Node& node, int64_t index) {
    const NodeParts& parts = *cut(node);
    std::vector<ValueId> inputs;
    std::vector<Shape> in, out;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      inputs.push_back(part(node.inputs[k], parts.inputs[k], index, node));
      in.push_back(node.inputs[k] == kNoValue ? Shape{} : r_.builder().shape(inputs[k]));
    }
    for (size_t k = 0; k < node.outputs.size(); ++k)
      out.push_back(part_shape(graph_.type(node.outputs[k]).shape, parts.outputs[k]));
    r_.at(node);
    const std::vector<ValueId> made =
        r_.builder().emit_all(node.op->name, std::move(inputs), localized_attrs(*node.op, node.attrs, in, out));
    for (size_t k = 0; k < made.size(); ++k) made_[node.outputs[k]].push_back(made[k]);
  }

  ValueId part(ValueId v, const RowParts& of, int64_t index, const Node& reader) {
    if (v == kNoValue) return v;
    if (of.before == 0) return whole(v, reader);
    if (parts_[v] == of) return made_[v][static_cast<size_t>(index)];
    auto [at, fresh] = taken_.try_emplace({v, of.before, index, pass(reader)}, kNoValue);
    if (fresh) {
      const ValueId all = whole(v, reader);
      r_.at(reader);
      at->second = take_part(r_.builder(), all, of, index);
    }
    return at->second;
  }

  // The value that all parts make, joined where it is first read.
  ValueId whole(ValueId v, const Node& reader) {
    if (!r_.has(v)) {
      r_.at(reader);
      r_.replace(v, join_parts(r_.builder(), made_[v], parts_[v], graph_.type(v).shape));
      r_.builder().name(r_(v), graph_.values[v].name);
    }
    return r_(v);
  }
  void whole_at_end(ValueId v) {
    if (v != kNoValue) whole(v, *graph_.producer(v));
  }

  const LocalProgram& program_;
  const Graph& graph_;
  const WaitedFor waited_for_;
  const int64_t count_;
  std::vector<std::optional<NodeParts>> cut_;  // per node that is computed in parts
  std::vector<RowParts> parts_;                // per value
  Rewriter r_;
  std::vector<std::vector<ValueId>> made_;  // per value, its parts in the new graph
  std::vector<const Node*> waiting_;        // to be computed part by part
  std::map<std::tuple<ValueId, int64_t, int64_t, Pass>, ValueId> taken_;
};

}  // namespace

int64_t overlap_products(LocalProgram& program, int64_t parts) {
  if (parts == 1) return 0;
  LocalProgram ordered = program;
  ordered.graph = Delaying(program).run();
  Cutting cutting(ordered, parts);
  const int64_t products = cutting.products();
  if (products > 0) program.graph = std::move(cutting).run(), program.row_parts = parts;
  return products;
}

}  // namespace partita
