// Sums over samples in a fixed order (train.yaml's reproducible): that they are the same balanced binary tree over the
// step's parts, whatever the ranks. A part's number is a mixed-radix number of the coordinates along the axes that
// divide samples, the one in time included; the tree is this order whenever what is nearer is summed first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "tools/verify/layout/index_map.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {

class SumOrder {
 public:
  // `parts`: of the step's samples; 0: sums have any order, and nothing is refused. `time`: the axis in time, or -1.
  SumOrder(const SerialValues& serial, const Mesh& mesh, int time, int64_t parts);

  // A data input, as it lies: a rank has one part at once, or all samples. `samples`: of the step.
  absl::Status take_input(const Shape& serial_shape, const IndexMap& layout, int64_t samples);
  // A node that computes, what its operands are and what its results.
  absl::Status check_node(const Node& node, const Graph& local, const std::vector<IndexMap>& operands,
                          const std::vector<IndexMap>& results) const;
  // A sum over the axes, which is there afterwards, of a value of this type.
  absl::Status check_sum(const IndexMap& x, const std::vector<int>& axes, DType type) const;

 private:
  absl::Status check_accumulation(const Node& node, const IndexMap& term) const;
  absl::Status check_apart(const IndexMap& x) const;
  bool divides_samples(int axis) const { return weight_[static_cast<size_t>(axis)] > 0; }
  const std::string& name(int axis) const { return mesh_.axes[static_cast<size_t>(axis)].name; }

  const Mesh& mesh_;
  const int time_;
  const int64_t parts_;
  std::vector<int64_t> weight_;        // of an axis' coordinate in a part's number; 0: it divides no samples
  std::vector<bool> read_in_a_batch_;  // per root of the serial program: computed with before the update
  bool known_ = false;                 // the weights
};

}  // namespace partita::verifier
