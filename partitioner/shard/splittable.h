// A graph in the form that the axes of a layout can split, and how the axes are cut for it.
#pragma once

#include "absl/status/statusor.h"
#include "partitioner/follow/layout_chooser.h"
#include "partitioner/layout/batch_plan.h"
#include "partitioner/prepare/pad_dimensions.h"
#include "partitioner/shard/mesh_axes.h"
#include "partitioner/shard/stage_scope.h"

namespace partita {

struct SplittableGraph {
  PaddedGraph padded;
  MeshAxes axes;
};

// Cuts the tensor and context axes as suits the graph, gives it the forms that can be split (batch statistics that the
// ranks of a batch share, vocabularies, masked positions), and pads what the tensor axis does not divide and then
// splits, and rows that the layout wants aligned. What `scope` lacks stays as it is.
absl::StatusOr<SplittableGraph> make_splittable(const Graph& graph, const Layout& layout, const BatchPlan& batch,
                                                const StageScope& scope);
// The same with the axes cut as those of `mesh` are.
absl::StatusOr<SplittableGraph> make_splittable_like(const Mesh& mesh, const Graph& graph, const Layout& layout,
                                                     const BatchPlan& batch, const StageScope& scope);

// Shares of the forward graph's operations that the axes divide, the largest of those that one is cut into.
struct AxisShares {
  double expert = 0, context = 0, tensor = 0;
};
// Lets the expert, context and tensor axes take what they can split, in this order; where sums have a fixed order, the
// tensor axis what leaves it to them. `graph`: the chooser's.
AxisShares choose_splits(const MeshAxes& axes, const BatchPlan& batch, const Graph& graph, LayoutChooser& chooser);

}  // namespace partita
