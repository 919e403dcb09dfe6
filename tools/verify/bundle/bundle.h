// The parts of a bundle that the verifier reads and writes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/fp8_blocks.h"
#include "ir/graph/graph.h"
#include "ir/nest/nest_text.h"
#include "nlohmann/json.hpp"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/program.h"
#include "tools/verify/bundle/claims.h"

namespace partita::verifier {

// The files of programs that do one thing together, and their evidence: the serial graph after passes, under a first
// line "# samples N" and, of training, a second "# run JSON"; the graph of the rank program, what its steps say they
// compute, and the nests of its kernels.
struct ProgramFiles {
  const char *image, *serial, *rank, *claims, *nests;
};
inline constexpr ProgramFiles kTrainingFiles{runtime::kImageName, "verify/serial.ir", "verify/rank.ir",
                                             "verify/rank.steps", "verify/rank.nests"};
inline constexpr ProgramFiles kEvaluationFiles{runtime::kEvaluationName, "verify/evaluation_serial.ir",
                                               "verify/evaluation_rank.ir", "verify/evaluation_rank.steps",
                                               "verify/evaluation_rank.nests"};

// A program of the bundle: all ranks', or those of a pipeline's stage.
struct RankProgram {
  Graph rank;
  Graph code;                // the rank's graph with composites expanded, which steps and claims are about
  std::vector<NodeId> from;  // per node of `code`, the rank's node that it comes from
  std::map<ValueId, Fp8Rounding> roundings;  // of `code`
  std::vector<Claim> claims;
  KernelNests nests;
  runtime::Program program;
};

// Makes `code`, and what is told beside it, of `rank`.
absl::Status expand_rank(RankProgram& p);

// Programs that do one thing together, and what it is.
struct ProgramSet {
  Graph serial;
  int64_t samples = 0;                // that a step of the serial program takes, over all micro-batches
  nlohmann::json run;                 // of training, what a run of it goes by besides: data, seed, evaluate
  std::vector<RankProgram> programs;  // by stage
};

struct Bundle : ProgramSet {             // of training
  std::string compress = "none";         // how gradients travel, as the manifest names it
  std::optional<ProgramSet> evaluation;  // forward alone, for inference, on the states of training
};

// What a program says of itself.
struct RankEvidence {
  Graph graph;
  std::vector<Claim> claims;
  KernelNests nests;
};

// "verify/rank.ir" of the only program, "verify/rank.1.ir" of stage 1 of several.
std::string stage_file(std::string_view file, size_t stage, size_t stages);

// What is written of the serial program.
struct SerialEvidence {
  const Graph& graph;
  int64_t samples = 0;
  nlohmann::json run = nullptr;
};

// FailedPrecondition where a part is not listed, DataLoss or InvalidArgument where one is damaged; each names the file.
absl::StatusOr<Bundle> read_bundle(const runtime::BundleFiles& files);
absl::Status write_evidence(const SerialEvidence& serial, const std::vector<RankEvidence>& programs,
                            const std::string& folder, const ProgramFiles& files);
// The graph without its weights' bytes or paths: that they come from the bundle's file is all that is kept.
Graph without_weights(Graph graph);

}  // namespace partita::verifier
