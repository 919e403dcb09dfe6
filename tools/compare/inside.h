// The inside of a kernel: what the reference evaluator makes of values that a side has, on the way to the next that it
// has. It is computed again with rounding, or with one node's result off by a factor, to see what that does to its end.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"
#include "tools/compare/rounding.h"

namespace partita {

// A step of a stage's program.
using WrittenBy = std::pair<size_t, int64_t>;

// A value of a step: as the side has it, or as the evaluator makes it of what the side has.
struct KnownValue {
  Tensor value;
  bool captured = true;             // by the side, or moved from what it has; not evaluated
  std::vector<Tensor> others = {};  // captured: copies that are as good, in other bits
  std::vector<NodeId> movers = {};  // captured: what moved it from where the side has it
  std::vector<WrittenBy> writers = {};
  // Evaluated: which result of which node, and of what. Results of one execution of a node share its number.
  NodeId node = kNoNode;
  size_t result = 0;
  int64_t execution = 0;
  std::vector<std::shared_ptr<const KnownValue>> operands = {};  // null: absent
};
using KnownValues = std::vector<std::shared_ptr<const KnownValue>>;

class Inside {
 public:
  // `end` is evaluated, and outlives this.
  Inside(const Graph& graph, const KnownValue& end);

  // The nodes from what the side has to the end, in order; views are none.
  const std::set<NodeId>& nodes() const { return nodes_; }
  // The end as `writers`, steps that are one kernel, may leave it, with rounding: kDraws of it. What else these write,
  // they need not have rounded to 16 bits before they went on with it: kernels compute in 32.
  std::vector<Tensor> draws(const std::vector<WrittenBy>& writers) const;
  // What becomes of the end where all numbers of one node's result, or of one constant that it reads, are off by a
  // factor: differences per unit of it.
  struct Direction {
    NodeId node = kNoNode;
    std::vector<double> change;
  };
  std::vector<Direction> directions() const;

 private:
  using Change = std::function<void(size_t execution, std::vector<Tensor>& results)>;
  using Operand = std::function<const Tensor*(size_t execution, size_t operand, Tensor& own)>;
  Tensor run(size_t first, const Operand& operand, const Change& change) const;

  const Graph& graph_;
  std::vector<const KnownValue*> order_;  // one result of each execution, in order; the last makes the end
  std::vector<std::vector<int>> inner_;   // per execution and operand, the execution that makes it; -1: it is captured
  size_t result_ = 0;
  std::set<NodeId> nodes_;
  double flops_ = 0;
};

}  // namespace partita
