// From shardings to the programs of the ranks: the one transformation, then the program passes as one visible table.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/pipeline/pass_table.h"
#include "partitioner/compress/compress_gradients.h"
#include "partitioner/layout/layout.h"
#include "partitioner/shard/shard.h"
#include "partitioner/stages/split_stages.h"

namespace partita {

// The programs of the ranks: one for all, or one for each stage of a pipeline.
struct LocalPrograms {
  std::vector<LocalProgram> stages;
  Compression compress = Compression::kNone;  // of gradients' sums over ranks, where some are compressed
  CompressedGradients compressed;             // on a rank, over all stages
  int64_t parted_products = 0;                // that are computed in parts of rows (overlap_products.h), of all stages
};
std::vector<const Graph*> graphs_of(const LocalPrograms& programs);

struct ProgramContext {
  const PlannedGraph& planned;
  const Layout& layout;
  Compression compress = Compression::kNone;
  StateOwners owners;  // of evaluation: the stages that have training's states
};

using ProgramPass = TablePass<absl::StatusOr<LocalPrograms>(LocalPrograms, const ProgramContext&)>;
// Evaluation's programs are not worth arranging: they run once in a while.
std::vector<ProgramPass> program_passes(PassUse use);
// Those of training with "localize" before them, which makes what they work on.
std::vector<std::string_view> program_pass_names();

// Localizes the planned graph and runs the program passes. InvalidArgument where a pipeline cannot be cut as the layout
// says.
absl::StatusOr<LocalPrograms> localize_stages(const ProgramContext& context, PassUse use, PassRun& run);

}  // namespace partita
