#include "codegen/prepare/code_passes.h"

#include <algorithm>
#include <numeric>

#include "codegen/prepare/added_rows.h"
#include "codegen/prepare/attention_views.h"
#include "codegen/prepare/channels_last.h"
#include "codegen/prepare/expand_composites.h"
#include "codegen/prepare/fp8_products.h"
#include "codegen/prepare/host_transfers.h"
#include "codegen/prepare/offload_activations.h"
#include "codegen/prepare/product_epilogues.h"
#include "codegen/prepare/relu_results.h"
#include "codegen/prepare/rematerialize.h"

namespace partita {
namespace {

// A graph that was made of p.graph takes its place; `same_as`: per value of it, the value of p.graph that it equals.
void take(PreparedGraph& p, Graph graph, const std::vector<ValueId>& same_as) {
  ValueId fresh = 0;  // several passes make temporaries
  for (ValueId v : p.same_as)
    fresh = PreparedGraph::is_temporary(v) ? std::max(fresh, PreparedGraph::number(v) + 1) : fresh;
  std::vector<ValueId> composed;
  for (ValueId v : same_as)
    composed.push_back(v == kNoValue ? PreparedGraph::temporary(fresh++) : p.same_as[static_cast<size_t>(v)]);
  p.graph = std::move(graph);
  p.same_as = std::move(composed);
}

// All stages with the graphs that `rewrite` makes of theirs.
template <typename Rewrite>
PreparedGraphs rewritten(PreparedGraphs all, const Rewrite& rewrite) {
  for (PreparedGraph& p : all.stages) {
    auto made = rewrite(p);
    take(p, std::move(made.graph), made.same_as);
  }
  return all;
}

absl::StatusOr<PreparedGraphs> expand(PreparedGraphs all, const CodeContext& c) {
  for (PreparedGraph& p : all.stages) {
    std::vector<ValueId> became;
    p.expanded = expand_composites(p.graph, c.fp8 ? &became : nullptr);
    if (c.fp8) p.roundings = fp8_roundings(p.graph, p.expanded, became);
    p.graph = p.expanded;
    p.same_as.resize(p.graph.values.size());
    std::iota(p.same_as.begin(), p.same_as.end(), 0);
  }
  return all;
}

absl::StatusOr<PreparedGraphs> use_fp8(PreparedGraphs all, const CodeContext& c) {
  if (!c.fp8) return all;
  return rewritten(std::move(all), [](const PreparedGraph& p) { return multiply_in_fp8(p.graph, p.roundings); });
}

absl::StatusOr<PreparedGraphs> use_relu_results(PreparedGraphs all, const CodeContext& c) {
  if (!c.gpu) return all;
  return rewritten(std::move(all), [](const PreparedGraph& p) { return read_relu_results(p.graph); });
}

absl::StatusOr<PreparedGraphs> make_again(PreparedGraphs all, const CodeContext& c) {
  for (size_t k = 0; k < all.stages.size(); ++k) {
    const LocalProgram& program = c.programs[k];
    Rematerialized made =
        rematerialize(all.stages[k].graph, program.row_parts, program.stage.schedule == PipelineSchedule::kZeroBubble,
                      c.gpu ? program.blocks_on_host : std::vector<bool>{});
    take(all.stages[k], std::move(made.graph), made.same_as);
  }
  return all;
}

absl::StatusOr<PreparedGraphs> use_sums(PreparedGraphs all, const CodeContext& c) {
  if (!c.added_rows) return all;
  return rewritten(std::move(all), [](const PreparedGraph& p) { return add_rows(p.graph); });
}

absl::StatusOr<PreparedGraphs> turn_channels(PreparedGraphs all, const CodeContext& c) {
  if (!c.channels_last) return all;
  for (PreparedGraph& p : all.stages) {
    ChannelsLast made = lay_channels_last(p.graph);
    const std::vector<bool> turned = std::move(made.turned);
    take(p, std::move(made.graph), made.same_as);
    for (size_t v = 0; v < turned.size(); ++v) {
      if (turned[v] && !PreparedGraph::is_temporary(p.same_as[v])) p.same_as[v] = p.turned(p.same_as[v]);
    }
  }
  return all;
}

absl::StatusOr<PreparedGraphs> add_epilogues(PreparedGraphs all, const CodeContext& c) {
  if (!c.epilogues) return all;
  return rewritten(std::move(all), [](const PreparedGraph& p) { return fuse_products(p.graph); });
}

absl::StatusOr<PreparedGraphs> use_views(PreparedGraphs all, const CodeContext& c) {
  return rewritten(std::move(all), [&](const PreparedGraph& p) { return view_attention(p.graph, c.gpu); });
}

// A CPU's values are all on one side, and so are those of a GPU that has all states.
absl::StatusOr<PreparedGraphs> add_transfers(PreparedGraphs all, const CodeContext& c) {
  for (size_t k = 0; c.gpu && k < all.stages.size(); ++k) {
    PreparedGraph& p = all.stages[k];
    const std::vector<bool> host = c.programs[k].host_states();
    if (std::count(host.begin(), host.end(), true) == 0) continue;
    SidedGraph sided = insert_host_transfers(p.graph, host);
    take(p, std::move(sided.graph), sided.same_as);
  }
  return all;
}

absl::StatusOr<PreparedGraphs> offload(PreparedGraphs all, const CodeContext& c) {
  for (size_t k = 0; c.gpu && k < all.stages.size(); ++k) {
    const LocalProgram& program = c.programs[k];
    const std::vector<bool>& blocks = program.blocks_on_host;
    if (std::count(blocks.begin(), blocks.end(), true) == 0) continue;
    PreparedGraph& p = all.stages[k];
    SidedGraph made = offload_activations(p.graph, program.stage.phases(p.graph), blocks, c.strict);
    take(p, std::move(made.graph), made.same_as);
  }
  return all;
}

constexpr CodePass kCodePasses[] = {
    {"expand_composites", expand, "loop nests are fused of ops that have a scalar form", Phase::kRank},
    {"fp8_products", use_fp8, "before what roundings are made of is made again, or joins other kernels", Phase::kRank},
    {"product_epilogues", add_epilogues, "on single ops, as the graph has them", Phase::kRank},
    {"relu_results", use_relu_results, "before it is decided what the backward part makes again", Phase::kRank},
    {"rematerialize", make_again, "what a product writes besides need not be made again", Phase::kRank},
    {"added_rows", use_sums, "a library kernel's results are not made again", Phase::kRank},
    {"channels_last", turn_channels, "the backward part reads what it makes again in its own order", Phase::kRank},
    {"attention_views", use_views, "what backward makes again, and what products write, is settled", Phase::kRank},
    {"host_transfers", add_transfers, "every later node is to be put on a side", Phase::kRank},
    {"offload_activations", offload, "last: what backward reads, and where its copies stand, is settled", Phase::kRank},
};

}  // namespace

std::vector<const Graph*> graphs_of(const PreparedGraphs& prepared) {
  std::vector<const Graph*> graphs;
  for (const PreparedGraph& p : prepared.stages) graphs.push_back(&p.graph);
  return graphs;
}

std::vector<CodePass> code_passes() { return {std::begin(kCodePasses), std::end(kCodePasses)}; }

absl::StatusOr<PreparedGraphs> prepare_graphs(const CodeContext& context, PassRun& run) {
  PreparedGraphs prepared;
  for (const LocalProgram& program : context.programs) prepared.stages.push_back({{}, program.graph, {}});
  return run_passes(code_passes(), std::move(prepared), context, run);
}

}  // namespace partita
