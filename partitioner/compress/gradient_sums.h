// Which collectives of a rank's graph sum gradients over ranks that take different samples.
#pragma once

#include <string>
#include <vector>

#include "partitioner/communicate/deferrable.h"
#include "partitioner/localize/local_program.h"

namespace partita {

// A gradient's sum over ranks: one collective, or several that follow each other (within a node, then across nodes).
struct GradientSum {
  std::vector<NodeId> nodes;
  std::vector<int64_t> axes;  // of all of them, ascending
  int64_t group_size = 1;     // ranks that are summed over
};

class GradientSums {
 public:
  // Sums over some of `axes`, the mesh axes along which ranks take different samples; `accumulated`: those of each
  // micro-batch, too, that ZeRO-2 and 3 add up in parts. `program` must outlive this.
  GradientSums(const LocalProgram& program, const std::vector<int>& axes, bool accumulated);

  // Whether the node is such a collective, of more than one element on a rank, and nothing else in backward computes
  // with what it leaves.
  bool contains(NodeId n) const { return is_sum_[static_cast<size_t>(n)]; }
  // Whether other such collectives alone read what the node leaves.
  bool is_summed_on(NodeId n) const;
  // The sum that begins with the node, which no other such collective stands before.
  GradientSum from(NodeId n) const;
  // The parameter that `sum` is the gradient of: the one that its elements update. Empty where none is found.
  std::string parameter_of(const GradientSum& sum) const;

 private:
  bool is_sum(const DeferrableResults& results, const Node& node, const std::vector<int>& axes, bool accumulated) const;

  const LocalProgram& program_;
  const Graph& graph_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> is_sum_;
};

}  // namespace partita
