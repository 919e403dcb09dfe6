#include "tools/flow/partition.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita {

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
