// Evaluation beside training: forward alone, for inference, on the states of training.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/emit_program.h"
#include "tools/flow/partition.h"

namespace partita {

struct CompiledEvaluation {
  Graph serial;  // what the ranks share out between them, for the verifier
  std::vector<ProgramClaims> claims;
  std::vector<runtime::Program> programs;  // none where train.yaml has no `evaluate`
};

// The serial evaluation graph: the model imported for inference, in runs of `graph_batch` samples as training's are,
// after the passes. `bound_batch`: where the file leaves a run's samples open. Errors of reading the model and of its
// passes.
absl::StatusOr<Graph> evaluation_graph(ModelSource& source, std::optional<int64_t> bound_batch, int64_t graph_batch,
                                       const PassContext& context, PassRun& run);

// The same model imported for inference, every state and input laid out as training has it. `run`: of its passes.
absl::StatusOr<CompiledEvaluation> compile_evaluation(ModelSource& source, const Partition& training,
                                                      const TargetOptions& target, PassRun& run);

}  // namespace partita
