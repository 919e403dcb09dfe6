#include "partitioner/stages/stage_messages.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

class Planner {
 public:
  Planner(const Graph& graph, const StageAssignment& stages, int pipeline_size)
      : graph_(graph),
        stages_(stages),
        pipeline_size_(pipeline_size),
        first_(graph.values.size()),
        wanted_(graph.values.size(), false),
        value_stage_(graph.values.size(), kAnywhere) {
    for (size_t k = 0; k < graph.states.size(); ++k) {  // every stage with terms has an accumulator of its own
      bool sums = graph.states[k].kind == StateKind::kAccumulator;
      value_stage_[graph.states[k].value] = sums ? kAnywhere : stages.state[k];
    }
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (ValueId v : graph.nodes[n].outputs) value_stage_[v] = stages.node[n];
    }
  }

  StageMessages run() {
    need_results();
    StageMessages out;
    out.live.resize(graph_.nodes.size());
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      out.live[n] = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return wanted_[v]; });
      if (out.live[n]) need_inputs(node, stages_.node[n]);
    }
    out.needed.resize(graph_.values.size());
    for (size_t v = 0; v < first_.size(); ++v) {
      for (const auto& [stage, segment] : first_[v]) {
        out.needed[v].insert(stage);
        send(static_cast<ValueId>(v), stage, segment, out);
      }
    }
    std::sort(out.all.begin(), out.all.end(), [&](const Message& a, const Message& b) { return key(a) < key(b); });
    auto same = [&](const Message& a, const Message& b) { return key(a) == key(b); };
    out.all.erase(std::unique(out.all.begin(), out.all.end(), same), out.all.end());
    number_channels(out);
    return out;
  }

 private:
  // Notes that `stage` reads `v` in `segment`.
  void need(ValueId v, int stage, Segment segment) {
    if (!with_each_micro_batch(segment)) stage %= pipeline_size_;
    auto [at, fresh] = first_[v].try_emplace(stage, segment);
    at->second = std::min(at->second, segment);
    wanted_[v] = true;
  }
  void need_everywhere(ValueId v, Segment segment) {
    for (int s = 0; s < stages_.stages; ++s) need(v, s, segment);
  }

  // Outputs and what states become.
  void need_results() {
    for (const GraphOutput& o : graph_.outputs) {
      bool scalar = elements(graph_.type(o.value).shape) == 1;
      int home = value_stage_[o.value] == kPartial ? stages_.home[o.value] : value_stage_[o.value];
      if (scalar || home < 0) {
        need_everywhere(o.value, Segment::kUpdate);
      } else {
        need(o.value, home, Segment::kUpdate);
      }
    }
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      const State& s = graph_.states[k];
      if (s.next == kNoValue) continue;
      wanted_[s.next] = true;
      if (value_stage_[s.next] == kPartial) continue;
      const Node* producer = graph_.producer(s.next);
      Segment segment = producer != nullptr ? producer->segment : Segment::kUpdate;
      if (stages_.state[k] < 0) {
        need_everywhere(s.next, segment);
      } else {
        need(s.next, stages_.state[k], segment);
      }
    }
  }

  void need_inputs(const Node& node, int stage) {
    if (stage == kPartial) {  // each stage reads its own
      for (ValueId v : node.inputs) {
        wanted_[v] = true;
        if (value_stage_[v] >= 0) need(v, value_stage_[v], node.segment);
        if (value_stage_[v] != kAnywhere) continue;
        for (int stage : stages_.terms[node.outputs[0]]) need(v, stage, node.segment);
      }
      return;
    }
    std::set<int> by;
    if (stage >= 0) by.insert(stage);
    if (stage == kAnywhere) {
      for (ValueId v : node.outputs) {
        for (const auto& [stage, segment] : first_[v]) by.insert(stage);
      }
    }
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      for (int stage : by) need(v, stage, node.segment);
    }
  }

  void send(ValueId v, int to, Segment reader, StageMessages& out) const {
    if (value_stage_[v] == kAnywhere) return;
    if (value_stage_[v] == kPartial) {
      int home = stages_.home[v];
      if (home < 0) return;  // summed over all stages at once
      PARTITA_CHECK(to == home % pipeline_size_, "a sum over stages that is read where it is not made");
      for (int from : stages_.terms[v]) {
        if (from % pipeline_size_ != to) out.all.push_back({v, from, to, reader, true});
      }
      return;
    }
    const int from = value_stage_[v];
    const Node* producer = graph_.producer(v);
    if (from == to) return;
    if (from % pipeline_size_ == to % pipeline_size_) {
      // A chunk's slot in memory is other micro-batches' when its passes end: what another chunk of the stage reads is
      // sent to it, from the stage to itself. What is read after the micro-batches is a sum, which stays, or what the
      // last one leaves in the first chunk, whose backward pass ends a step.
      if (producer == nullptr || !with_each_micro_batch(producer->segment)) return;
      if (!with_each_micro_batch(reader)) {
        PARTITA_CHECK(producer->op->sums_micro_batches || from < pipeline_size_,
                      cat("read after the chunk that makes it has ended: ", graph_.origin(*producer)));
        return;
      }
    }
    Message m{v, from, to, reader, true};
    if (producer == nullptr) {
      m.segment = Segment::kPrologue;
    } else if (reader <= Segment::kBackward) {
      bool forward = producer->segment <= Segment::kForward;
      PARTITA_CHECK(to < from ? reader == Segment::kBackward : forward,
                    cat("stage ", to, " needs a value of stage ", from, " too early: ", graph_.origin(*producer)));
      m.segment = forward && to > from ? producer->segment : Segment::kBackward;
    }
    m.early = producer == nullptr || producer->segment != m.segment;
    if (!with_each_micro_batch(m.segment)) m.to %= pipeline_size_;
    out.all.push_back(m);
  }

  // One for each way and distance.
  static void number_channels(StageMessages& out) {
    std::map<int, int> number;
    for (const Message& m : out.all) {
      if (with_each_micro_batch(m.segment)) number.emplace(m.to - m.from, 0);
    }
    int next = 0;
    for (auto& [distance, channel] : number) channel = next++;
    for (Message& m : out.all) m.channel = with_each_micro_batch(m.segment) ? number.at(m.to - m.from) : 0;
    out.channels = std::max(1, next);
  }

  // The order in which values are made.
  std::tuple<Segment, bool, NodeId, ValueId, int, int> key(const Message& m) const {
    return {m.segment, !m.early, graph_.values[m.value].producer, m.value, m.from, m.to};
  }

  const Graph& graph_;
  const StageAssignment& stages_;
  const int pipeline_size_;
  std::vector<std::map<int, Segment>>
      first_;  // per value: stages of the assignment or the pipeline that read it, and their first segment that does
  std::vector<bool> wanted_;
  std::vector<int> value_stage_;  // per value: as StageAssignment::node
};

}  // namespace

StageMessages plan_messages(const Graph& graph, const StageAssignment& stages, int pipeline_size) {
  return Planner(graph, stages, pipeline_size).run();
}

}  // namespace partita
