// What a tensor axis divides of a graph, whatever its size, as plan_shardings() chooses it: the planner prices this.
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "ir/mesh/mesh.h"
#include "partitioner/follow/layout_chooser.h"
#include "partitioner/prepare/split_forms.h"

namespace partita {

class TensorSplit {
 public:
  // `graph`: a training graph, which must outlive this. `sample_parts`: as LayoutChooser has them.
  TensorSplit(const Graph& graph, int64_t sample_parts);
  TensorSplit(const TensorSplit&) = delete;

  bool divides(ValueId v) const { return !factors_of(v).empty(); }
  // By factor of the node's formula: whether it is divided, as operands and results lie.
  std::vector<bool> divided(const Node& node, const Formula& formula) const;
  // The divided factors that a value has, and the size of each: a larger axis pads it.
  const std::vector<size_t>& factors_of(ValueId v) const;
  int64_t size(size_t factor) const { return chooser_.size(factor); }

 private:
  const SplitForms forms_;
  const Mesh mesh_;  // of an axis of any size
  LayoutChooser chooser_;
};

}  // namespace partita
