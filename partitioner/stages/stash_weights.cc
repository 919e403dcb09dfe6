#include "partitioner/stages/stash_weights.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita {
namespace {

class Stasher {
 public:
  explicit Stasher(const LocalProgram& stage)
      : stage_(stage),
        graph_(stage.graph),
        readers_(uses(graph_)),
        updated_(graph_.values.size(), false),
        counts_(graph_.values.size(), false),
        at_end_(graph_.nodes.size(), false),
        rewriter_(graph_) {
    for (const State& s : graph_.states) {
      const Node* next = s.next == kNoValue ? nullptr : graph_.producer(s.next);
      updated_[s.value] = next != nullptr && next->segment > Segment::kBackward;
      counts_[s.value] = s.kind == StateKind::kStep;
    }
    for (const Node& node : graph_.nodes) {  // a weight's copy in another type changes with it
      if (node.segment != Segment::kPrologue || !reads(node, updated_)) continue;
      for (ValueId v : node.outputs) updated_[v] = true;
    }
    const int64_t stages = stage.mesh.axes[static_cast<size_t>(stage.stage.axis)].size;
    in_flight_ = slots_of(stage_order(stage.stage.schedule, stages, stage.stage.index, 1, stage.micro_batches));
  }

  absl::Status check() {
    find_end();
    for (const State& s : graph_.states) {
      const NodeId next = s.next == kNoValue ? kNoNode : graph_.values[s.next].producer;
      if (next != kNoNode && at_end_[static_cast<size_t>(next)]) {
        return absl::InvalidArgumentError(
            cat("pin schedule: pipedream: the update of ", quote(s.name),
                " needs values of other stages, which are at other micro-batches; use schedule: 1f1b"));
      }
    }
    return absl::OkStatus();
  }

  Graph run() && {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) emit(n);
    return std::move(rewriter_).finish();
  }

 private:
  static bool reads(const Node& node, const std::vector<bool>& marked) {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNoValue && marked[v]; });
  }
  bool meets_stages(const Node& node) const {
    if (!node.op->communicates) return false;
    const std::vector<int64_t>& axes = node.attrs.ints("axes");
    return std::find(axes.begin(), axes.end(), stage_.stage.axis) != axes.end();
  }

  // After the micro-batches: what all stages do together, what follows from it, and what is for that alone. A state is
  // read where its update is, before it is gone.
  void find_end() {
    std::vector<bool> late(graph_.values.size(), false), kept(graph_.values.size(), false);
    for (const State& s : graph_.states) {
      if (s.next != kNoValue) kept[s.next] = true;
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      at_end_[n] = node.segment > Segment::kBackward && (meets_stages(node) || reads(node, late));
      for (ValueId v : node.outputs) late[v] = at_end_[n];
    }
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (node.segment <= Segment::kBackward || reads(node, updated_)) continue;
      at_end_[n] = at_end_[n] || std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
                     return !kept[v] && std::all_of(readers_[v].begin(), readers_[v].end(),
                                                    [&](NodeId r) { return at_end_[static_cast<size_t>(r)]; });
                   });
    }
  }

  Segment segment_of(size_t n) const {
    const Segment segment = graph_.nodes[n].segment;
    if (segment == Segment::kPrologue) return Segment::kForward;
    if (segment <= Segment::kBackward) return segment;
    return at_end_[n] ? Segment::kUpdate : Segment::kReduce;
  }

  void emit(size_t n) {
    const Node& node = graph_.nodes[n];
    const bool as_stashed = node.segment == Segment::kForward || node.segment == Segment::kBackward;
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs)
      inputs.push_back(as_stashed && v != kNoValue && updated_[v] ? stashed(v) : rewriter_(v));
    rewriter_.at(node);
    Builder& b = rewriter_.builder();
    b.context().segment = segment_of(n);
    auto made = b.try_emit(*node.op, std::move(inputs), node.attrs);
    PARTITA_CHECK(made.ok(), cat(graph_.origin(node), ": ", made.status().message()));
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      rewriter_.replace(node.outputs[k], (*made)[k]);
      if (const std::string& name = graph_.values[node.outputs[k]].name; !name.empty()) b.name((*made)[k], name);
    }
  }

  ValueId stashed(ValueId v) {
    const bool count = counts_[v];
    if (!count && in_flight_ == 1) return rewriter_(v);
    auto [at, fresh] = stashed_.try_emplace(v, kNoValue);
    if (!fresh) return at->second;
    rewriter_.builder().context() = {.segment = count ? Segment::kPrologue : Segment::kForward};
    return at->second = rewriter_.builder().emit("stash", {rewriter_(v)});
  }

  const LocalProgram& stage_;
  const Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> updated_;  // per value: changes with each micro-batch's update
  std::vector<bool> counts_;   // per value: the count of steps
  std::vector<bool> at_end_;   // per node
  int64_t in_flight_ = 1;      // micro-batches
  Rewriter rewriter_;
  std::map<ValueId, ValueId> stashed_;
};

}  // namespace

absl::Status stash_weights(LocalProgram& stage) {
  Stasher stasher(stage);
  if (absl::Status status = stasher.check(); !status.ok()) return status;
  stage.graph = std::move(stasher).run();
  sort_by_execution(stage.graph, stage.stage);
  return absl::OkStatus();
}

}  // namespace partita
