#include "tools/annotate/annotate_model.h"

#include <algorithm>
#include <optional>

#include "base/cat.h"
#include "base/status.h"
#include "frontend/onnx/device_annotations.h"
#include "ir/recipe/write_recipe.h"
#include "partitioner/localize/localize.h"
#include "tools/flow/partition.h"

namespace partita {
namespace {

constexpr const char* kConfiguration = "partita";

// How a tensor of this shape lies on the ranks of a stage. Parts in time are one after the other on a device, which has
// them all: a part of the dimension that no device splits. None where it is padded, for which ONNX has no words.
std::optional<OnnxSharding> said(const Sharding& s, const Shape& shape, const Mesh& mesh, int stage_axis,
                                 int64_t stage) {
  OnnxSharding out;
  std::vector<std::vector<int>> axes;  // of each part that is listed
  for (size_t d = 0; d < s.dims.size(); ++d) {
    std::vector<OnnxSharding::Part> parts;
    std::vector<std::vector<int>> own;
    int64_t size = 1, shards = 1;
    auto add = [&](int64_t extent, std::vector<int> devices) {
      parts.push_back({extent, mesh.ways(devices)});
      shards *= parts.back().shards;
      own.push_back(std::move(devices));
    };
    for (const Piece& p : s.dims[d]) {
      const auto time = mesh.time < 0 ? p.axes.end() : std::find(p.axes.begin(), p.axes.end(), mesh.time);
      std::vector<int> before(p.axes.begin(), time);
      int64_t left = p.size;
      size *= p.size;
      if (time != p.axes.end() && time + 1 != p.axes.end()) {
        const int64_t outer = mesh.ways(before), times = mesh.axes[static_cast<size_t>(mesh.time)].size;
        if (outer > 1) add(outer, before);
        add(times, {});
        left /= outer * times;
        before.assign(time + 1, p.axes.end());
      }
      add(left, std::move(before));
    }
    if (size != shape[d]) return std::nullopt;
    if (shards == 1) continue;
    out.dims.emplace_back(static_cast<int64_t>(d), std::move(parts));
    axes.insert(axes.end(), own.begin(), own.end());
  }
  out.devices.resize(static_cast<size_t>(out.shards()));
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const std::vector<int64_t> at = mesh.coordinates(rank);
    if (stage_axis >= 0 && at[static_cast<size_t>(stage_axis)] != stage) continue;
    int64_t shard = 0;
    for (const std::vector<int>& part : axes) {
      for (int a : part) shard = shard * mesh.axes[static_cast<size_t>(a)].size + at[static_cast<size_t>(a)];
    }
    out.devices[static_cast<size_t>(shard)].push_back(rank);
  }
  return out;
}

// Where each value is made, by the programs of the stages.
std::map<std::string, int64_t> stages_of(const LocalPrograms& programs) {
  std::map<std::string, int64_t> stages;
  for (size_t k = 0; k < programs.stages.size(); ++k) {
    const Graph& g = programs.stages[k].graph;
    for (const Node& node : g.nodes) {
      for (ValueId v : node.outputs) {
        const std::string& name = g.values[static_cast<size_t>(v)].name;
        if (node.segment == Segment::kForward && !name.empty()) stages.emplace(name, static_cast<int64_t>(k));
      }
    }
  }
  return stages;
}

}  // namespace

absl::StatusOr<AnnotatedModel> annotate_model(const Planning& planning, const Layout& layout,
                                              const std::string& output) {
  const Recipe recipe = recipe_of(*planning.source, planning.problem, layout);
  PassRun run = PassRun::unchecked();
  PhaseTimes times;
  PARTITA_ASSIGN_OR_RETURN(const Partition p,
                           partition_model(*planning.source, recipe, {.ranks = layout.ranks()}, run, times));
  if (!p.planned.alike.empty())
    return absl::InvalidArgumentError(
        "--annotate: the stages divide different things, and ONNX numbers the devices of all stages alike");
  const Graph& g = p.planned.joined.graph;
  const ShardingPlan& plan = p.planned.joined.plan;
  PARTITA_ASSIGN_OR_RETURN(const std::vector<Sharding> lies, value_shardings(g, plan));
  const int64_t stages = p.model.layout.pipeline;
  const int stage_axis = plan.mesh.find(kStageAxis);
  OnnxDevices devices{kConfiguration, plan.mesh.ranks(), format_pins(recipe.pin), {}, {}};
  devices.tensors.resize(static_cast<size_t>(stages));
  if (stages > 1) devices.stages = stages_of(p.programs);
  AnnotatedModel out;
  auto add = [&](const std::string& name, const Sharding& s, const Shape& shape) {
    if (name.empty()) return;
    for (int64_t k = 0; k < stages; ++k) {
      const auto sharding = said(s, shape, plan.mesh, stage_axis, k);
      if (sharding) devices.tensors[static_cast<size_t>(k)].emplace(name, *sharding);
      out.unsaid += !sharding && k == 0;
    }
  };
  for (size_t k = 0; k < g.states.size(); ++k) {
    const Shape& shape = plan.logical.empty() ? g.type(g.states[k].value).shape : plan.logical[k];
    if (g.states[k].kind == StateKind::kParameter && plan.states[k])
      add(g.states[k].name, plan.states[k]->compute, shape);
  }
  for (size_t k = 0; k < g.inputs.size(); ++k) add(g.inputs[k].name, plan.inputs[k], g.type(g.inputs[k].value).shape);
  for (const Node& node : g.nodes) {
    if (node.segment != Segment::kForward) continue;
    for (ValueId v : node.outputs)
      add(g.values[static_cast<size_t>(v)].name, lies[static_cast<size_t>(v)], g.type(v).shape);
  }
  PARTITA_ASSIGN_OR_RETURN(out.nodes, write_device_annotations(planning.source->path(), output, devices));
  return out;
}

}  // namespace partita
