#include "partitioner/communicate/overlap_micro_batches.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "partitioner/communicate/deferrable.h"
#include "partitioner/communicate/state_gathers.h"
#include "partitioner/stages/stage_messages.h"

namespace partita {
namespace {

class Cutter {
 public:
  explicit Cutter(LocalProgram& program)
      : program_(program), g_(program.graph), gathers_(g_), results_(program), whole_(g_.nodes.size(), false) {}

  absl::Status run() {
    PARTITA_RETURN_IF_ERROR(keep_states_whole());
    struct Turn {
      int number = 0;
      std::set<ValueId> started;  // in it
    };
    std::map<std::pair<Segment, int32_t>, Turn> last;  // of each pass
    std::vector<int> turn_of(g_.nodes.size(), 0);
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      const Node& node = g_.nodes[n];
      if (!with_each_micro_batch(node.segment)) continue;
      Turn& turn = last[{node.segment, program_.stage.phase(node)}];
      const bool waits = std::any_of(node.inputs.begin(), node.inputs.end(),
                                     [&](ValueId v) { return v != kNoValue && turn.started.count(v) > 0; });
      if (waits && !whole_[n]) ++turn.number, turn.started.clear();
      turn_of[n] = turn.number;
      most_ = std::max(most_, turn.number + 1);
      if (is_waited_for(node)) turn.started.insert(node.outputs.begin(), node.outputs.end());
    }
    // Messages between stages are told by their order: those of a micro-batch go before those of the next one, as they
    // are taken up.
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      const Node& node = g_.nodes[n];
      if (!node.op->communicates || node.op->collective || !with_each_micro_batch(node.segment)) continue;
      if (node.outputs.empty()) turn_of[n] = last.at({node.segment, program_.stage.phase(node)}).number;
      if (node.inputs.empty()) turn_of[n] = 0;
    }
    for (size_t n = 0; n < g_.nodes.size(); ++n) g_.nodes[n].turn = turn_of[n];
    return absl::OkStatus();
  }

  int turns() const { return most_; }

 private:
  // Gathers of parameters run ahead, and what gradients are scattered to is only added up.
  bool is_waited_for(const Node& node) const {
    return node.op->communicates && node.op->collective && !node.outputs.empty() && !gathers_.is_gather(node) &&
           !results_.are_accumulated(node);
  }

  // From where a state is read first to where it has changed no turn begins: the next micro-batch reads it then.
  absl::Status keep_states_whole() {
    const std::vector<std::vector<NodeId>> readers = uses(g_);
    for (const State& s : g_.states) {
      const Node* next = s.next == kNoValue ? nullptr : g_.producer(s.next);
      if (next == nullptr || !with_each_micro_batch(next->segment) || next->op->sums_micro_batches) continue;
      const size_t end = static_cast<size_t>(next - g_.nodes.data());
      const auto pass = [&](const Node& n) { return std::pair(n.segment, program_.stage.phase(n)); };
      for (NodeId r : readers[s.value]) {
        const size_t reader = static_cast<size_t>(r);
        if (pass(g_.nodes[reader]) != pass(*next))
          return absl::InvalidArgumentError(
              cat("pin overlap_micro_batches: ", quote(s.name),
                  " changes with each micro-batch, and its backward pass reads what it was before; leave it out"));
        for (size_t n = std::min(reader, end) + 1; n <= std::max(reader, end); ++n) whole_[n] = true;
      }
    }
    return absl::OkStatus();
  }

  LocalProgram& program_;
  Graph& g_;
  const StateGathers gathers_;
  const DeferrableResults results_;
  std::vector<bool> whole_;  // per node: no turn begins before it
  int most_ = 1;
};

}  // namespace

absl::Status overlap_micro_batches(std::vector<LocalProgram>& stages, int64_t overlapped) {
  if (overlapped == 1) return absl::OkStatus();
  int turns = 1;
  for (LocalProgram& stage : stages) {
    if (stage.micro_batches < 2)
      return absl::InvalidArgumentError(
          cat("pin overlap_micro_batches: ", overlapped, ": a rank has ", stage.micro_batches,
              " micro-batch a step, which has none to take turns with; pin a smaller micro_batch"));
    Cutter cutter(stage);
    PARTITA_RETURN_IF_ERROR(cutter.run());
    turns = std::max(turns, cutter.turns());
  }
  for (LocalProgram& stage : stages) {
    stage.stage.overlapped = turns > 1 ? overlapped : 1;
    stage.stage.turns = turns;
    sort_by_execution(stage.graph, stage.stage);
  }
  return absl::OkStatus();
}

}  // namespace partita
