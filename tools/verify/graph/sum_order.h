// Sums over samples in a fixed order (train.yaml's reproducible): that they are the same balanced binary tree over the
// step's parts, whatever the ranks. A part's number is a mixed-radix number of the coordinates along the axes that
// divide samples, the one in time included; the tree is this order whenever what is nearer is summed first.
//
// Sums over an inner dimension that a tensor axis divides are likewise one tree over its blocks, of which the serial
// program's products say how large they are (ir/ops/matmul.cc): a rank has blocks that follow one another, as many as
// each other one, a power of two, and so a branch; the ranks are in the order of their branches. What else is added up
// of a value that such an axis divides has an order that does not depend on how much of it a rank has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "tools/verify/graph/fixed_sums.h"
#include "tools/verify/layout/index_map.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {

class SumOrder {
 public:
  // Where `fixed` asks for no order, nothing is refused. `time`: the axis in time, or -1.
  SumOrder(const SerialValues& serial, const Mesh& mesh, int time, const FixedSums& fixed);

  // A data input, as it lies: a rank has one part at once, or all samples. `samples`: of the step.
  absl::Status take_input(const Shape& serial_shape, const IndexMap& layout, int64_t samples);
  // A node that computes, what its operands are and what its results.
  absl::Status check_node(const Node& node, const Graph& local, const std::vector<IndexMap>& operands,
                          const std::vector<IndexMap>& results) const;
  // The same for axes that divide no samples; `s`: the node of the serial program that it is.
  absl::Status check_blocks(NodeId s, const Node& node, const Graph& local, const std::vector<IndexMap>& operands,
                            const std::vector<IndexMap>& results) const;
  // Whether a value of this type may become a sum over the axis by counting on its first rank alone.
  bool counts_once(int axis, DType type) const { return parts_ == 0 || divides_samples(axis) || !is_float(type); }
  // A sum over the axes, which is there afterwards, of a value of this type.
  absl::Status check_sum(const IndexMap& x, const std::vector<int>& axes, DType type) const;

 private:
  absl::Status check_accumulation(const Node& node, const IndexMap& term) const;
  absl::Status check_apart(const IndexMap& x) const;
  absl::Status check_count(NodeId s) const;
  absl::Status check_product(NodeId s, const Node& node, const Graph& local, const IndexMap& x, int axis) const;
  absl::Status check_reductions(NodeId s, const Node& node, const Graph& local, const std::vector<IndexMap>& operands,
                                const std::vector<IndexMap>& results) const;
  absl::StatusOr<Shape> undivided(ValueId serial, const IndexMap& x, const Shape& local) const;
  bool divides_features(int axis) const {
    return !divides_samples(axis) && mesh_.axes[static_cast<size_t>(axis)].size > 1;
  }
  bool divides_samples(int axis) const { return weight_[static_cast<size_t>(axis)] > 0; }
  const std::string& name(int axis) const { return mesh_.axes[static_cast<size_t>(axis)].name; }

  const SerialValues& serial_;
  const Mesh& mesh_;
  const int time_;
  const int64_t parts_, blocks_;
  std::vector<int64_t> weight_;        // of an axis' coordinate in a part's number; 0: it divides no samples
  std::vector<bool> read_in_a_batch_;  // per root of the serial program: computed with before the update
  bool known_ = false;                 // the weights
};

}  // namespace partita::verifier
