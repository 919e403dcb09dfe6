// One training step of one side, node by node: each value that the side has is held against what the reference
// evaluator makes of the operands that the side has. So a difference is found at its node, whatever it has grown from
// and however it grows: operands that come in differing explain what they explain.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

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

class StepCheck {
 public:
  // `copies`: what the side has. States and inputs that are not among them are taken from `others`, which may be null:
  // of the first step of another side of the same program.
  StepCheck(const verifier::SerialValues& serial, StepRuns runs, const RankCopies::Copies& copies,
            const RankCopies::Copies* others = nullptr);

  StepReport run();

 private:
  struct Known : DrawnValue {
    bool captured = false;  // by the side, not evaluated
  };
  void take(ValueId v, int64_t run, Tensor value);
  void take_held(ValueId v, int64_t run);
  void take_outside();
  void run_nodes(const std::set<Segment>& segments, int64_t run);
  void run_node(NodeId n, int64_t run);
  void hold_against_copies(NodeId n, ValueId v, int64_t run, Known& mine);
  void check_sums();
  void add(NodeId n, ValueId v, int64_t run, const RootCopy& copy, Deviation d, bool moved);
  void name_between();
  std::set<NodeId> inside_of(ValueId value, int64_t run) const;
  int64_t held_under(ValueId v, int64_t run) const;
  const Known* known(ValueId v, int64_t run) const;

  const verifier::SerialValues& serial_;
  const Graph& g_;
  const int64_t runs_, together_;
  const RankCopies::Copies& copies_;
  const RankCopies::Copies* others_;
  const std::vector<bool> needed_;                      // nodes
  std::map<std::pair<ValueId, int64_t>, Known> known_;  // by value and run
  std::map<int32_t, ValueId> maker_;                    // per root, the first value that is it
  std::map<ValueId, ValueId> next_of_;                  // of a state that changes with each run: what it becomes
  std::set<ValueId> zero_at_first_;                     // accumulators
  std::set<std::pair<int32_t, int64_t>> checked_;       // roots and runs
  StepReport report_;
};

// "'MatMul /layers.0/attn' (backward, matmul)".
std::string describe_node(const Graph& graph, const Node& node);
// A value by its name, or by what makes it.
std::string describe_value(const Graph& graph, NodeId node, ValueId value);

}  // namespace partita
