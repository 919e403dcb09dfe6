// One training step of one side, node by node: each value that the side has is held against what the reference
// evaluator makes of the operands that the side has. So a difference is found at its node, whatever it has grown from
// and however it grows: operands that come in differing explain what they explain.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tools/compare/inside.h"
#include "tools/compare/rank_copies.h"
#include "tools/compare/rounding.h"
#include "tools/verify/layout/serial_values.h"

namespace partita {

// A value that is not what its node makes of its operands.
struct Difference {
  NodeId node = kNoNode;     // of the serial graph; kNoNode: an input or a state
  ValueId value = kNoValue;  // of it
  int64_t run = 0;           // of the graph
  RootCopy copy;             // as these ranks have it
  Deviation deviation;
  bool moved = false;           // another copy is as it should be: it went wrong on its way from there
  std::vector<NodeId> between;  // nodes from the operands that the side has to this value, in order: the last is `node`
};

struct StepReport {
  std::vector<Difference> differences;  // in the order of the serial program
  int64_t compared = 0;                 // values, each in each run of the graph
  int64_t inside = 0;                   // that the side never has as a whole: the inside of its kernels
};

// Sees each node as it is run, with what the side has of its operands and results where it has them, else with what the
// evaluator makes of them. `copies`: of that result; empty where the side does not have it.
class NodeWatch {
 public:
  virtual ~NodeWatch() = default;
  virtual void see(NodeId node, size_t result, int64_t run, const KnownValues& operands, const KnownValue& value,
                   const std::vector<RootCopy>& copies) = 0;
};

class StepCheck {
 public:
  // `copies`: what the side has. States and inputs that are not among them are taken from `others`, which may be null:
  // of the first step of another side of the same program.
  StepCheck(const verifier::SerialValues& serial, StepRuns runs, const RankCopies::Copies& copies,
            const RankCopies::Copies* others = nullptr);

  StepReport run();
  // The same walk for a watch alone: nothing is compared.
  void show(NodeWatch& watch);

 private:
  class Expected;
  using Known = std::shared_ptr<const KnownValue>;
  void take(ValueId v, int64_t run, KnownValue value);
  void take_held(ValueId v, int64_t run);
  void take_outside();
  void find_last_reads();
  void run_all();
  void run_nodes(int phase, int64_t run);
  void run_node(NodeId n, int64_t run);
  void forget(NodeId n, int phase, int64_t run);
  // The copies that there are; `mine` becomes what the side has.
  std::vector<RootCopy> hold_against_copies(ValueId v, int64_t run, KnownValue& mine);
  void check_sums();
  void add(Difference d);
  void name_between();
  int64_t held_under(ValueId v, int64_t run) const;
  Known known(ValueId v, int64_t run) const;

  const verifier::SerialValues& serial_;
  const Graph& g_;
  const int64_t runs_, together_;
  const RankCopies::Copies& copies_;
  const RankCopies::Copies* others_;
  const std::vector<bool> needed_;                                  // nodes
  std::map<std::pair<ValueId, int64_t>, Known> known_;              // by value and run, until the last node has read it
  std::vector<std::pair<int, NodeId>> last_reads_;                  // per value: the phase of the step, and the node
  std::map<std::pair<ValueId, int64_t>, std::set<NodeId>> inside_;  // of values that the side has
  int64_t executions_ = 0;
  std::map<int32_t, ValueId> maker_;               // per root, the first value that is it
  std::set<int32_t> summed_;                       // roots that ranks have as sums over runs
  std::map<ValueId, ValueId> next_of_;             // of a state that changes with each run: what it becomes
  std::set<ValueId> zero_at_first_, kept_;         // accumulators; values that other runs read
  std::set<std::pair<int32_t, int64_t>> checked_;  // roots and runs
  StepReport report_;
  NodeWatch* watch_ = nullptr;  // null: values are compared
};

// "'MatMul /layers.0/attn' (backward, matmul)".
std::string describe_node(const Graph& graph, const Node& node);
// A value by its name, or by what makes it.
std::string describe_value(const Graph& graph, NodeId node, ValueId value);

}  // namespace partita
