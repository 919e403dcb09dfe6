#include "partitioner/shard/plan_stages.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/status.h"
#include "partitioner/shard/join_plans.h"
#include "partitioner/shard/place_tensors.h"
#include "partitioner/shard/splittable.h"

namespace partita {
namespace {

// Stages that have one mesh.
struct StageKind {
  Layout layout;
  BatchPlan batch;
  StageScope scope;
  size_t first = 0;  // of its stages
};

// The kinds of the layout's stages, and which one each stage is of.
class StageKinds {
 public:
  StageKinds(const Layout& layout, const BatchPlan& batch) {
    std::vector<std::set<int64_t>> stages;
    for (size_t s = 0; s < layout.stages.size(); ++s) {
      size_t k = 0;
      while (k < kinds_.size() && layout.stages[s] != layout.stages[kinds_[k].first]) ++k;
      if (k == kinds_.size()) {
        kinds_.push_back({layout.of_stage(static_cast<int64_t>(s)), batch, {}, s});
        kinds_[k].batch.batch_ranks = layout.stages[s].sample_ranks() / batch.slice_ranks;
        stages.emplace_back();
      }
      stages[k].insert(static_cast<int64_t>(s));
      kind_.push_back(k);
    }
    for (size_t k = 0; k < kinds_.size(); ++k) kinds_[k].scope = StageScope(stages[k], kinds_[k].layout.pipeline);
  }

  // A plan for each stage: the graph is made splittable for one kind after the other, then placed for each.
  absl::StatusOr<std::vector<PlannedGraph>> plan(
      const Graph& graph,
      const std::function<absl::StatusOr<SplittableGraph>(const StageKind&, const Graph&)>& make_splittable,
      const std::function<absl::StatusOr<PlannedGraph>(const StageKind&, SplittableGraph)>& place) const {
    PaddedGraph all{graph, {}, {}};
    std::vector<MeshAxes> axes;
    for (const StageKind& kind : kinds_) {
      PARTITA_ASSIGN_OR_RETURN(SplittableGraph next, make_splittable(kind, all.graph));
      if (all.logical.empty()) all.logical = std::move(next.padded.logical);
      all.graph = std::move(next.padded.graph);
      axes.push_back(std::move(next.axes));
    }
    std::vector<PlannedGraph> planned;
    for (size_t k = 0; k < kinds_.size(); ++k) {
      PARTITA_ASSIGN_OR_RETURN(planned.emplace_back(), place(kinds_[k], {all, std::move(axes[k])}));
    }
    std::vector<PlannedGraph> stages;
    for (size_t k : kind_) stages.push_back(planned[k]);
    return stages;
  }

 private:
  std::vector<StageKind> kinds_;
  std::vector<size_t> kind_;
};

// The graph with its nodes marked by their stages.
absl::StatusOr<Graph> marked(const Graph& graph, const Layout& layout, const StateOwners& owners) {
  PARTITA_ASSIGN_OR_RETURN(StageAssignment stages,
                           assign_stages(graph, layout.pipeline * layout.interleave, owners, layout.cut_names));
  Graph out = graph;
  for (size_t n = 0; n < out.nodes.size(); ++n) out.nodes[n].chunk = std::max(stages.node[n], -1) + 1;
  return out;
}

absl::StatusOr<PlannedStages> joined(std::vector<PlannedGraph> alike, const Layout& layout, const StateOwners& owners) {
  PlannedStages out;
  const Graph& graph = alike[0].graph;
  PARTITA_ASSIGN_OR_RETURN(StageAssignment stages, assign_stages(graph, layout.pipeline * layout.interleave, owners));
  std::vector<ShardingPlan> plans;
  for (const PlannedGraph& p : alike) plans.push_back(p.plan);
  plans = on_one_mesh(std::move(plans));
  for (const ShardingPlan& p : plans) {
    if (p.slice_axes != plans[0].slice_axes)
      return absl::InvalidArgumentError(
          "pin stages: a step has several runs of the graph, and the stages do not share them out over the same ranks; "
          "use stages with equally many data ranks, a batch of one run, or an export with a symbolic batch dimension");
  }
  PARTITA_ASSIGN_OR_RETURN(JoinedPlan whole, join_plans(graph, stages, plans));
  out.joined = {std::move(whole.graph), std::move(whole.plan)};
  out.alike = std::move(alike);
  return out;
}

}  // namespace

absl::StatusOr<PlannedStages> plan_stages(const Graph& graph, const Recipe& recipe, const Layout& layout,
                                          const BatchPlan& batch, std::vector<std::string>& warnings) {
  PARTITA_RETURN_IF_ERROR(check_sharding_pins(graph, recipe));
  PARTITA_ASSIGN_OR_RETURN(Graph marks, marked(graph, layout, {}));
  PARTITA_ASSIGN_OR_RETURN(std::vector<PlannedGraph> alike,
                           StageKinds(layout, batch)
                               .plan(
                                   marks,
                                   [](const StageKind& kind, const Graph& g) {
                                     return make_splittable(g, kind.layout, kind.batch, kind.scope);
                                   },
                                   [&](const StageKind& kind, SplittableGraph g) {
                                     return place_tensors(std::move(g), recipe, kind.layout, kind.batch, kind.scope,
                                                          warnings);
                                   }));
  return joined(std::move(alike), layout, {});
}

absl::StatusOr<PlannedStages> plan_stages_like(const PlannedStages& training, const Graph& graph, const Recipe& recipe,
                                               const Layout& layout, const BatchPlan& batch,
                                               const StateOwners& owners) {
  PARTITA_ASSIGN_OR_RETURN(Graph marks, marked(graph, layout, owners));
  PARTITA_ASSIGN_OR_RETURN(std::vector<PlannedGraph> alike,
                           StageKinds(layout, batch)
                               .plan(
                                   marks,
                                   [&](const StageKind& kind, const Graph& g) {
                                     return make_splittable_like(training.alike[kind.first].plan.mesh, g, kind.layout,
                                                                 kind.batch, kind.scope);
                                   },
                                   [&](const StageKind& kind, SplittableGraph g) {
                                     return place_tensors_like(training.alike[kind.first], std::move(g), recipe,
                                                               kind.layout, kind.batch, kind.scope);
                                   }));
  return joined(std::move(alike), layout, owners);
}

}  // namespace partita
