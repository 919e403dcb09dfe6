// The mesh of a layout: which axes it has, and what each of them divides.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ir/mesh/mesh.h"
#include "partitioner/layout/batch_plan.h"

namespace partita {

inline constexpr const char *kTensorAxis = "tensor", *kContextAxis = "context";

// Indices of the mesh's axes.
struct MeshAxes {
  Mesh mesh;
  std::vector<int> slice;  // divide the runs of the graph
  std::vector<int> batch;  // divide the samples of a run; the micro-batches that a rank cuts its part into come first,
                           // or last where their sums have a fixed order and do not travel with each micro-batch
  std::vector<int> zero;   // whose ranks share what ZeRO stores in parts
  std::vector<int> context;  // the context axis, or those that it is cut into, outermost first
  std::vector<int> tensor;   // likewise
  int expert = -1;

  // Parts of a run's samples, over ranks and one after the other.
  int64_t sample_parts() const { return mesh.ways(batch); }
};

// Sizes of the axes that the tensor and context axes are cut into, outermost first.
struct AxisCuts {
  std::vector<int64_t> tensor, context;
};

// The pipeline's stages are outermost: they talk least. The data axis is cut where whole runs of the graph end and
// where a ZeRO group ends; the expert axis is inside of it, then context, then tensor: the innermost talk most.
// Where a hierarchical group ends it is cut, too. InvalidArgument where these and the ranks of a run do not nest.
absl::StatusOr<MeshAxes> mesh_axes(const Layout& layout, const BatchPlan& batch, const AxisCuts& cuts);

// Of a mesh that mesh_axes() made: the axes that ranks of different hierarchical groups differ in; none without them.
std::vector<int> far_axes(const Mesh& mesh, const Layout& layout);

}  // namespace partita
