#include "partitioner/planner/report/planned_step.h"

#include <array>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr double kMostRanks = 1 << 20, kMostOperations = 1e7;

absl::Status refuse(std::string_view fault) {
  return absl::InvalidArgumentError(cat("plan: ", fault, "; make the plan again"));
}

absl::Status lacks(std::string_view what, std::string_view key) {
  return refuse(cat("expected ", what, " under ", quote(key), ", found none"));
}

absl::StatusOr<Simulation> simulation(const Plan& plan) {
  Simulation s{.micro_batches = plan.micro_batches,
               .overlapped = plan.pin.overlap_micro_batches.value_or(1),
               .schedule = plan.pin.schedule.value_or(PipelineSchedule::k1f1b),
               .send = plan.send_seconds,
               .send_waited = plan.send_waited_seconds};
  for (const Plan::Stage& stage : plan.stages) {
    std::vector<StageTimes>& chunks = s.chunks.emplace_back();
    for (const Plan::Chunk& c : stage.chunks) chunks.push_back(c.times);
    if (chunks.size() != s.chunks[0].size()) return refuse("expected as many chunks on each stage");
  }
  const double operations =
      static_cast<double>(s.micro_batches) * static_cast<double>(s.chunks.size() * s.chunks[0].size());
  if (operations > kMostOperations) return refuse("expected 1 to 10 million operations");
  return s;
}

// The axes of each stage. The numbers are anybody's: they may be more than there are integers for.
absl::StatusOr<std::vector<Layout::StageAxes>> axes_of_stages(const Plan& plan) {
  const size_t stages = plan.stages.size();
  if (plan.pin.axis("pipeline").value_or(1) != static_cast<int64_t>(stages) ||
      (!plan.pin.stages.empty() && plan.pin.stages.size() != stages))
    return absl::InvalidArgumentError(cat("plan: expected ", stages, " stages under \"pin\", as under \"stages\""));
  std::vector<Layout::StageAxes> out;
  for (size_t s = 0; s < stages; ++s) {
    auto axis = [&](const char* name) -> int64_t {
      if (plan.pin.stages.empty()) return plan.pin.axis(name).value_or(1);
      const auto at = plan.pin.stages[s].find(name);
      return at == plan.pin.stages[s].end() ? 1 : at->second;
    };
    const Layout::StageAxes& axes =
        out.emplace_back(Layout::StageAxes{axis("data"), axis("tensor"), axis("context"), axis("expert")});
    const double ranks = static_cast<double>(axes.data) * static_cast<double>(axes.tensor) *
                         static_cast<double>(axes.context) * static_cast<double>(axes.expert);
    if (ranks * static_cast<double>(stages) > kMostRanks)
      return absl::InvalidArgumentError(cat("plan: expected at most ", kMostRanks, " ranks"));
  }
  return out;
}

absl::Status check(const Transfer& t, int64_t stage_ranks) {
  for (const RankAxis& axis : t.members) {
    if (stage_ranks % axis.size != 0 || stage_ranks / axis.size % axis.stride != 0)
      return refuse(cat("members: [", axis.size, ",", axis.stride, "] is no axis of ", stage_ranks, " ranks"));
  }
  int64_t all = 1;
  std::string levels;
  for (int64_t level : t.levels) {
    append(levels, levels.empty() ? "" : ",", level);
    if (all <= stage_ranks) all *= level;
  }
  if (all != t.ranks() || t.ranks() > stage_ranks)
    return refuse(cat("levels: [", levels, "] do not make groups of ", t.ranks()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlannedStep> planned_step(const Plan& plan) {
  PlannedStep out;
  PARTITA_ASSIGN_OR_RETURN(out.simulation, simulation(plan));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<Layout::StageAxes> axes, axes_of_stages(plan));
  out.traffic.micro_batches = plan.micro_batches;
  out.traffic.chunks = static_cast<int64_t>(out.simulation.chunks[0].size());
  if (!plan.boundary_bytes) return lacks("a number", "boundary_bytes");
  out.traffic.boundary_bytes = *plan.boundary_bytes;
  for (const PlanTraffic::Shared& s : plan.shared) {
    const auto stages = static_cast<int64_t>(plan.stages.size());
    if (s.owner >= stages || s.reader >= stages) return refuse(cat("shared: expected stages below ", stages));
  }
  out.traffic.shared = plan.shared;
  const std::vector<LengthTime>& lengths = plan.predicted.lengths;  // stages are those of the largest
  out.predicted_seconds = lengths.empty() ? plan.predicted.step_seconds : lengths.back().step_seconds;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Plan::Stage& stage = plan.stages[s];
    out.stages.push_back({out.ranks(), axes[s], stage.memory.total(), stage.memory.activations});
    if (!stage.traffic) return lacks("what ranks send", cat("stages[", s, "].traffic"));
    for (const Transfer& t : *stage.traffic) PARTITA_RETURN_IF_ERROR(check(t, axes[s].ranks()));
    out.traffic.stages.push_back({axes[s].ranks(), *stage.traffic});
    std::vector<ChunkTimes>& chunks = out.times.chunks.emplace_back();
    for (const Plan::Chunk& chunk : stage.chunks) {
      if (!chunk.by_kind) return lacks("seconds by pass", cat("stages[", s, "].chunks[", chunks.size(), "].parts"));
      chunks.push_back(*chunk.by_kind);
    }
    if (!stage.update) return lacks("seconds by part", cat("stages[", s, "].update"));
    out.times.updates.push_back(*stage.update);
  }
  if (!plan.after_update) return lacks("seconds by part", "after_update");
  out.times.after = *plan.after_update;
  if (!plan.nodes) return lacks("the cluster's nodes", "nodes");
  out.nodes = *plan.nodes;
  return out;
}

int64_t PlannedStep::stage_of(int64_t rank) const {
  size_t s = stages.size() - 1;
  while (s > 0 && stages[s].first_rank > rank) --s;
  return static_cast<int64_t>(s);
}

std::string rank_name(const PlannedStep& step, int64_t rank) {
  const int64_t stage = step.stage_of(rank);
  const PlannedStep::Stage& at = step.stages[static_cast<size_t>(stage)];
  int64_t index = rank - at.first_rank;
  std::string text = cat("stage ", stage), inner;
  for (auto [name, size] : {std::pair{"tensor", at.axes.tensor},
                            {"context", at.axes.context},
                            {"expert", at.axes.expert},
                            {"data", at.axes.data}}) {
    if (size > 1) inner = cat(", ", name, " ", index % size, inner);
    index /= size;
  }
  text += inner;
  int64_t device = rank, node = 0;
  for (const Plan::Nodes& n : step.nodes) {
    if (device < n.nodes * n.devices_per_node)
      return cat(text, "; node ", node + device / n.devices_per_node, ", device ", device % n.devices_per_node, " (",
                 n.device, ")");
    device -= n.nodes * n.devices_per_node, node += n.nodes;
  }
  return text;
}

}  // namespace partita
