#include "partitioner/stages/split_stages.h"

#include <algorithm>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "partitioner/stages/stage_cutter.h"
#include "partitioner/stages/stage_messages.h"
#include "partitioner/stages/stash_weights.h"

namespace partita {
namespace {

// Of the backward segment the products that nothing sent depends on, gradients of weights, and what follows from them,
// run apart, and what is made for them alone where that takes less than what it is made of. Sums for gradients of norms
// and biases do not: they take little time, and what they read as much memory as the products' operands. A stage that
// sends nothing, the first one, puts nothing off, so that all of it is one part.
class WeightsApart {
 public:
  explicit WeightsApart(Graph& g) : g_(g), readers_(uses(g)), leads_(g.nodes.size(), false) {}

  void run() {
    find_leading();
    const bool sends = std::ranges::any_of(
        g_.nodes, [](const Node& node) { return node.segment == Segment::kBackward && node.outputs.empty(); });
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      Node& node = g_.nodes[n];
      if (node.segment != Segment::kBackward) continue;
      const bool follows = std::ranges::any_of(node.inputs, [&](ValueId v) {
        const Node* producer = v == kNoValue ? nullptr : g_.producer(v);
        return producer != nullptr && producer->segment == Segment::kBackward && producer->weight_gradient;
      });
      node.weight_gradient = !leads_[n] && (!sends || follows || node.op->work == WorkKind::kMatrix);
    }
    for (size_t n = g_.nodes.size(); n-- > 0;) {
      Node& node = g_.nodes[n];
      if (node.segment == Segment::kBackward && !leads_[n] && !node.weight_gradient && serves_products(node))
        node.weight_gradient = node.op->view || extended_by(node) <= made_by(node);
    }
  }

 private:
  void find_leading() {
    std::vector<bool> sent(g_.values.size(), false);
    for (size_t n = g_.nodes.size(); n-- > 0;) {
      const Node& node = g_.nodes[n];
      if (node.segment != Segment::kBackward) continue;
      leads_[n] = node.outputs.empty() || node.inputs.empty() ||
                  std::ranges::any_of(node.outputs, [&](ValueId v) { return sent[v]; });
      for (ValueId v : node.inputs) {
        if (leads_[n] && v != kNoValue) sent[v] = true;
      }
    }
  }

  bool is_apart(NodeId n) const { return g_.nodes[n].segment == Segment::kBackward && g_.nodes[n].weight_gradient; }

  bool serves_products(const Node& node) const {
    return std::ranges::all_of(node.outputs, [&](ValueId v) {
      return !readers_[v].empty() && std::ranges::all_of(readers_[v], [&](NodeId n) { return is_apart(n); });
    });
  }

  // Bytes that would wait for the node alone.
  int64_t extended_by(const Node& node) const {
    std::set<ValueId> inputs(node.inputs.begin(), node.inputs.end());
    int64_t bytes = 0;
    for (ValueId v : inputs) {
      if (v == kNoValue || g_.producer(v) == nullptr || g_.producer(v)->segment == Segment::kPrologue) continue;
      if (std::ranges::none_of(readers_[v], [&](NodeId reader) { return is_apart(reader); }))
        bytes += byte_size(g_.type(v));
    }
    return bytes;
  }

  int64_t made_by(const Node& node) const {
    int64_t bytes = 0;
    for (ValueId v : node.outputs) bytes += byte_size(g_.type(v));
    return bytes;
  }

  Graph& g_;
  const std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> leads_;
};

// A parameter is sent to the other stages that read it once a step; with PipeDream it changes with every micro-batch.
absl::Status refuse_tied(const Graph& g, const StageMessages& messages) {
  for (const State& s : g.states) {
    for (const Message& m : messages.all) {
      if (m.value == s.value && s.next != kNoValue)
        return absl::InvalidArgumentError(
            cat("pin schedule: pipedream: ", quote(s.name), " is read by stages ", m.from, " and ", m.to,
                ", which update at different times; pin cuts so that one stage reads it, or use schedule: 1f1b"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LocalProgram>> split_stages(const LocalProgram& local, int axis, const PipelineShape& shape,
                                                       const StateOwners& owners) {
  const int64_t chunks = shape.chunks;
  int64_t pipeline_size = local.mesh.axes[static_cast<size_t>(axis)].size;
  if (chunks > 1 && local.micro_batches % (pipeline_size * shape.overlapped) != 0) {
    return absl::InvalidArgumentError(
        cat("pin schedule: interleaved: ", local.micro_batches, " micro-batches a step over ", pipeline_size, " stages",
            shape.overlapped > 1 ? cat(", ", shape.overlapped, " of them in turns") : "", "; expected a multiple of ",
            pipeline_size * shape.overlapped, ": pin micro_batch or the batch accordingly, or use 1f1b"));
  }
  PARTITA_ASSIGN_OR_RETURN(StageAssignment stages, assign_stages(local.graph, pipeline_size * chunks, owners,
                                                                 shape.cuts, !local.mesh.apart.empty()));
  StageMessages messages = plan_messages(local.graph, stages, static_cast<int>(pipeline_size));
  if (shape.schedule == PipelineSchedule::kPipedream) PARTITA_RETURN_IF_ERROR(refuse_tied(local.graph, messages));
  std::vector<LocalProgram> programs;
  for (int64_t s = 0; s < pipeline_size; ++s) {
    PipelineStage stage = {.axis = axis,
                           .index = s,
                           .schedule = shape.schedule,
                           .chunks = chunks,
                           .channels = messages.channels,
                           .overlapped = shape.overlapped};
    programs.push_back(StageCutter(local, stages, messages, stage, owners.empty()).run());
    if (shape.schedule == PipelineSchedule::kZeroBubble) WeightsApart(programs.back().graph).run();
    sort_by_execution(programs.back().graph, stage);
    if (stage.updates_each()) PARTITA_RETURN_IF_ERROR(stash_weights(programs.back()));
  }
  return programs;
}

StateOwners state_owners(const std::vector<LocalProgram>& stages) {
  StateOwners owners;
  std::set<std::string> shared;  // tables and the step: of every stage that reads them
  for (const LocalProgram& p : stages) {
    const int pipeline_size =
        p.stage.axis < 0 ? 1 : static_cast<int>(p.mesh.axes[static_cast<size_t>(p.stage.axis)].size);
    const std::vector<std::vector<NodeId>> readers = uses(p.graph);
    for (const State& s : p.graph.states) {
      int chunk = readers[s.value].empty() ? 0 : p.graph.nodes[static_cast<size_t>(readers[s.value].front())].chunk;
      const bool fresh = owners.try_emplace(s.name, chunk * pipeline_size + static_cast<int>(p.stage.index)).second;
      if (!fresh || s.kind == StateKind::kStep) shared.insert(s.name);
    }
  }
  for (const std::string& name : shared) owners.erase(name);
  return owners;
}

}  // namespace partita
