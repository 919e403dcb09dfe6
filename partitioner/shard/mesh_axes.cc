#include "partitioner/shard/mesh_axes.h"

#include <set>

#include "base/cat.h"

namespace partita {
namespace {

constexpr const char* kDataAxis = "data";

int add_axis_of(MeshAxes& axes, std::string name, int64_t size) {
  axes.mesh.axes.push_back({std::move(name), size});
  return static_cast<int>(axes.mesh.axes.size()) - 1;
}

// `inside`: sample ranks inside of the axis.
void take_samples(MeshAxes& axes, int axis, int64_t inside, const Layout& layout, const BatchPlan& batch) {
  (inside < batch.batch_ranks ? axes.batch : axes.slice).push_back(axis);
  if (inside < layout.shard_ranks()) axes.zero.push_back(axis);
}

// "tensor", or "tensor0" and "tensor1".
std::vector<int> add_cut_axis(MeshAxes& axes, const std::string& name, const std::vector<int64_t>& sizes) {
  std::vector<int> added;
  for (size_t k = 0; k < sizes.size(); ++k)
    added.push_back(add_axis_of(axes, sizes.size() == 1 ? name : cat(name, k), sizes[k]));
  return added;
}

}  // namespace

absl::StatusOr<MeshAxes> mesh_axes(const Layout& layout, const BatchPlan& batch, const AxisCuts& cuts) {
  MeshAxes axes;
  if (layout.pipeline > 1) add_axis_of(axes, kStageAxis, layout.pipeline);
  std::set<int64_t> ends = {layout.expert, layout.sample_ranks()};
  const int64_t shards = layout.zero > 0 ? layout.shard_ranks() : 1;
  for (int64_t end : {batch.batch_ranks, shards, layout.hierarchical_group}) {
    if (end > layout.expert) ends.insert(end);
  }
  std::vector<int64_t> sizes;  // innermost first
  for (auto at = ends.begin(); std::next(at) != ends.end(); ++at) {
    if (*std::next(at) % *at != 0) {
      return absl::InvalidArgumentError(cat(
          "pin ", shards == *at || shards == *std::next(at) ? "zero_group" : "hierarchical_group", ": groups of ", *at,
          " ranks do not fit groups of ", *std::next(at),
          " (ranks that share one run of the graph, or one sharded copy, or that sum first); expected one to divide "
          "the other"));
    }
    sizes.push_back(*std::next(at) / *at);
  }
  int64_t inside = layout.sample_ranks();
  for (size_t k = sizes.size(); k-- > 0;) {
    inside /= sizes[k];
    const std::string name = sizes.size() == 1 ? kDataAxis : cat(kDataAxis, sizes.size() - 1 - k);
    take_samples(axes, add_axis_of(axes, name, sizes[k]), inside, layout, batch);
  }
  if (layout.expert > 1) {
    axes.expert = add_axis_of(axes, "expert", layout.expert);
    take_samples(axes, axes.expert, 1, layout, batch);
  }
  axes.context = add_cut_axis(axes, kContextAxis, cuts.context);
  if (layout.tensor > 1) axes.tensor = add_cut_axis(axes, kTensorAxis, cuts.tensor);
  axes.zero.insert(axes.zero.end(), axes.context.begin(), axes.context.end());
  if (batch.parts > 1) {
    axes.mesh.time = add_axis_of(axes, "micro_batch", batch.parts);
    // What is summed first has the nearest samples: a rank's micro-batches, where it adds them up before ranks meet.
    const bool nearest = batch.fixed_parts > 0 && layout.zero < 2;
    axes.batch.insert(nearest ? axes.batch.end() : axes.batch.begin(), axes.mesh.time);
  }
  if (batch.fixed_parts > 0) axes.mesh.apart = axes.batch;
  return axes;
}

std::vector<int> far_axes(const Mesh& mesh, const Layout& layout) {
  std::vector<int> far;
  int64_t inside = layout.sample_ranks();
  for (size_t a = 0; a < mesh.axes.size() && layout.hierarchical_group > 0; ++a) {
    if (!mesh.axes[a].name.starts_with(kDataAxis)) continue;
    inside /= mesh.axes[a].size;
    if (inside >= layout.hierarchical_group) far.push_back(static_cast<int>(a));
  }
  return far;
}

}  // namespace partita
