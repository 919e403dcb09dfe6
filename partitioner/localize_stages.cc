#include "partitioner/localize_stages.h"

#include <algorithm>
#include <chrono>

#include "partitioner/communicate/bucket.h"
#include "partitioner/communicate/bucket_gathers.h"
#include "partitioner/communicate/keep_gathered.h"
#include "partitioner/communicate/level_sums.h"
#include "partitioner/communicate/overlap_micro_batches.h"
#include "partitioner/communicate/overlap_products.h"
#include "partitioner/communicate/prefetch_gathers.h"
#include "partitioner/communicate/regather_in_backward.h"
#include "partitioner/localize/localize.h"
#include "partitioner/shard/mesh_axes.h"

namespace partita {
namespace {

constexpr std::string_view kLocalize = "localize";

absl::StatusOr<LocalPrograms> cut_into_stages(LocalPrograms p, const ProgramContext& c) {
  const Layout& layout = c.layout;
  if (layout.pipeline == 1) return p;
  PARTITA_ASSIGN_OR_RETURN(
      p.stages, split_stages(p.stages.front(), c.planned.plan.mesh.find(kStageAxis),
                             {layout.schedule, layout.interleave, layout.cut_names, layout.overlapped()}, c.owners));
  return p;
}

absl::StatusOr<LocalPrograms> regather(LocalPrograms p, const ProgramContext& c) {
  for (LocalProgram& stage : p.stages) regather_in_backward(stage, axis_use(c.planned.plan, stage.stage).scatter);
  return p;
}

absl::StatusOr<LocalPrograms> compress(LocalPrograms p, const ProgramContext& c) {
  for (LocalProgram& stage : p.stages) {
    const CompressedGradients done =
        compress_gradients(stage, c.compress, axis_use(c.planned.plan, stage.stage).samples, c.layout.buckets);
    p.compressed.sums += done.sums, p.compressed.bytes += done.bytes, p.compressed.plain_bytes += done.plain_bytes;
  }
  if (p.compressed.sums > 0) p.compress = c.compress;
  return p;
}

absl::StatusOr<LocalPrograms> sum_by_levels(LocalPrograms p, const ProgramContext& c) {
  for (LocalProgram& stage : p.stages) sum_in_levels(stage, far_axes(c.planned.plan.mesh, c.layout));
  return p;
}

absl::StatusOr<LocalPrograms> bucket(LocalPrograms p, const ProgramContext& c) {
  for (LocalProgram& stage : p.stages) bucket_collectives(stage, c.layout.buckets);
  return p;
}

absl::StatusOr<LocalPrograms> keep(LocalPrograms p, const ProgramContext& c) {
  for (LocalProgram& stage : p.stages) keep_gathered(stage, c.layout.prefetched());
  return p;
}

absl::StatusOr<LocalPrograms> bucket_stored(LocalPrograms p, const ProgramContext& c) {
  for (LocalProgram& stage : p.stages) bucket_gathers(stage, c.layout.buckets);
  return p;
}

absl::StatusOr<LocalPrograms> prefetch(LocalPrograms p, const ProgramContext& c) {
  for (LocalProgram& stage : p.stages) prefetch_gathers(stage, c.layout.prefetched());
  return p;
}

absl::StatusOr<LocalPrograms> part_products(LocalPrograms p, const ProgramContext& c) {
  for (LocalProgram& stage : p.stages) p.parted_products += overlap_products(stage, c.layout.row_parts());
  return p;
}

absl::StatusOr<LocalPrograms> overlap(LocalPrograms p, const ProgramContext& c) {
  PARTITA_RETURN_IF_ERROR(overlap_micro_batches(p.stages, c.layout.overlapped()));
  return p;
}

// What blocks of the graph keep on the host.
std::vector<bool> blocks_on_host(const Graph& graph, const Layout& layout) {
  int32_t last = -1;
  for (const Node& node : graph.nodes) last = std::max(last, node.block);
  std::vector<bool> out(static_cast<size_t>(last + 1));
  for (size_t b = 0; b < out.size(); ++b) out[b] = waits_on_host(layout.recompute_of(b));
  return out;
}

constexpr ProgramPass kProgramPasses[] = {
    {"split_stages", cut_into_stages, "on the whole rank's graph: what stages send is told by who reads it",
     Phase::kRank},
    {"regather_in_backward", regather, "gathers that the stages have are told from those that they receive",
     Phase::kRank, PassUse::kTraining},
    {"compress_gradients", compress, "each sum by itself, before several travel as one", Phase::kRank,
     PassUse::kTraining},
    {"sum_in_levels", sum_by_levels, "what is left of the sums once they are compressed, each by itself", Phase::kRank,
     PassUse::kTraining},
    {"bucket_collectives", bucket, "once every reduction is what will travel", Phase::kRank, PassUse::kTraining},
    {"keep_gathered", keep, "each gather by itself: of a bucket, backward may read a part", Phase::kRank,
     PassUse::kTraining},
    {"bucket_gathers", bucket_stored, "beside the gradients' buckets: gathers of stored parameters go by block",
     Phase::kRank, PassUse::kTraining},
    {"prefetch_gathers", prefetch, "once a bucket starts as one", Phase::kRank, PassUse::kTraining},
    {"overlap_products", part_products, "when each collective is what will travel: parts are not joined again",
     Phase::kRank, PassUse::kTraining},
    {"overlap_micro_batches", overlap, "last: turns begin by what is waited for in the order that is run", Phase::kRank,
     PassUse::kTraining},
};

}  // namespace

std::vector<const Graph*> graphs_of(const LocalPrograms& programs) {
  std::vector<const Graph*> graphs;
  for (const LocalProgram& stage : programs.stages) graphs.push_back(&stage.graph);
  return graphs;
}

std::vector<ProgramPass> program_passes(PassUse use) {
  return passes_for(std::span<const ProgramPass>(kProgramPasses), use);
}

std::vector<std::string_view> program_pass_names() {
  std::vector<std::string_view> names = {kLocalize};
  for (const ProgramPass& pass : program_passes(PassUse::kTraining)) names.push_back(pass.name);
  return names;
}

absl::StatusOr<LocalPrograms> localize_stages(const ProgramContext& context, PassUse use, PassRun& run) {
  LocalPrograms programs;
  const auto start = std::chrono::steady_clock::now();
  const Graph& graph = context.planned.graph;
  PARTITA_ASSIGN_OR_RETURN(LocalProgram whole, localize(graph, context.planned.plan));
  whole.blocks_on_host = blocks_on_host(graph, context.layout);
  programs.stages.push_back(std::move(whole));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  PARTITA_RETURN_IF_ERROR(
      run.passed(kLocalize, Phase::kRank, took.count(), static_cast<int64_t>(graph.nodes.size()), graphs_of(programs)));
  if (context.layout.ranks() == 1) return programs;  // nothing travels
  return run_passes(program_passes(use), std::move(programs), context, run);
}

}  // namespace partita
