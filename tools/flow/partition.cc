#include "tools/flow/partition.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

void warn_of_no_blocks(const Recipe& recipe, const Graph& graph, std::vector<std::string>& warnings) {
  const RecomputeMode asked = recipe.recompute_of(0);
  if (asked > RecomputeMode::kNone &&
      std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.block < 0; }))
    warnings.push_back(cat("recompute: ", enum_name(asked),
                           ": nothing is computed again: the model has no layers that repeat, and too few products to "
                           "be cut into blocks"));
}

}  // namespace

absl::StatusOr<Partition> partition_model(ModelSource& source, const Recipe& recipe, const PartitionOptions& options,
                                          PassRun& run, PhaseTimes& times) {
  Partition out;
  PARTITA_ASSIGN_OR_RETURN(out.model, read_model(source, recipe, options.ranks));
  ModelInHand& m = out.model;
  m.layout.row_bytes = options.row_bytes;
  times.lap("import");
  PARTITA_ASSIGN_OR_RETURN(out.training, training_graph(source, m, options.keep_gradients, run));
  times.lap("passes");
  if (run.stopped()) return out;
  warn_of_no_blocks(m.recipe, *out.training.graph, m.warnings);
  PARTITA_ASSIGN_OR_RETURN(out.planned, shard(*out.training.graph, m.recipe, m.layout, m.batch, m.warnings));
  const ProgramContext context{out.planned.joined, m.layout, m.recipe.compress, {}};
  PARTITA_ASSIGN_OR_RETURN(out.programs, localize_stages(context, PassUse::kTraining, run));
  if (!run.stopped() && out.programs.compress != m.recipe.compress)
    m.warnings.push_back(cat("compress: ", enum_name(m.recipe.compress),
                             ": no gradient is summed over ranks that take different samples; none is compressed"));
  times.lap("partition");
  return out;
}

}  // namespace partita
