// The one flow from a model file to the ranks' programs. Each step returns what the next one takes:
//
//   read_model      file, recipe       -> model, layout, batch   tools/flow/training_graph.h
//   training_graph  model              -> graph                  graph passes: passes/pipeline.h
//   shard           graph, layout      -> shardings              partitioner/shard/plan_shardings.h
//   localize_stages shardings          -> ranks' graphs          program passes: partitioner/localize_stages.h
//   emit_programs   graphs, target     -> programs, claims       code passes: codegen/prepare/code_passes.h
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/emit_program.h"
#include "ir/graph/graph.h"
#include "ir/pipeline/pass_run.h"
#include "ir/recipe/recipe.h"
#include "nlohmann/json.hpp"
#include "partitioner/compress/compress_gradients.h"
#include "runtime/program/program.h"
#include "tools/flow/evaluation.h"
#include "tools/flow/weight_files.h"

namespace partita {

struct CompileRequest {
  std::string model;  // file or folder
  Recipe recipe;
  std::optional<int64_t> ranks;  // unset: as the pins say, else 1
  TargetOptions target;
  bool keep_gradients = false;
  std::vector<double> room;  // bytes that each stage's program may take; empty: any
  nlohmann::json plan;       // what the plan says of a step, for whoever runs it; null without one
  PassOptions passes;
};

struct Compiled {
  std::vector<runtime::Program> programs;  // of the ranks: one, or one for each stage of a pipeline
  Graph serial;                            // what the ranks share out between them, for the verifier
  SerialForm form;                         // in which it was made
  int64_t samples = 0;                     // a step's, likewise
  std::vector<ProgramClaims> claims;       // what the programs' steps say that they compute, likewise
  CompiledEvaluation evaluation;
  std::vector<Compiled> batches;  // where the global batch changes: for its other numbers of samples
  std::vector<Compiled> lengths;  // where samples have several lengths: for the others; this is for the largest
  int64_t length = 0;             // of this one's samples, where there are several
  nlohmann::json run;             // what a run goes by besides the programs: run_settings() of the recipe
  nlohmann::json plan;            // as in the request
  std::vector<InitialTensor> weights;
  std::vector<std::string> warnings;
  Recipe recipe;                                        // with what the layout and the model decide
  std::string layout;                                   // in words
  std::vector<std::string> unused_outputs;              // of the model, beside the loss or what it is made of
  int64_t weight_elements = 0;                          // trained and frozen
  int64_t products = 0, fp8_products = 0;               // of matrices, forward and backward; of fp8 numbers
  std::vector<std::pair<std::string, double>> seconds;  // by phase
  std::vector<PassTime> passes;
  bool stopped = false;  // as asked for, before the end: there is nothing to write
  int64_t ranks = 1;
  int64_t parameters = 0;                    // trained elements
  std::optional<PipelineSchedule> schedule;  // of a pipeline's stages
  // What the ranks of each stage divide (data, expert, context, tensor), where the stages differ.
  std::vector<std::map<std::string, int64_t>> stage_axes;
  Compression compress = Compression::kNone;  // of gradients' sums over ranks, where some are compressed
  CompressedGradients compressed;             // on a rank, over all stages
  int64_t statistic_samples = 0;  // that one batch statistic is of, by semantics.batch_norm; 0: all of a run
  int64_t capacity_samples = 0;   // that share an expert's capacity, by semantics.moe; 0: as the model has it
  int64_t gathered_bytes = 0;     // of parameters that a rank stores in parts, at hand at once at most
};

// Where the recipe's global batch changes, also for the numbers of samples before the last, and where samples have
// several lengths, also for the shorter ones; a parameter that these would divide in different ways is whole on each
// rank, which is a warning. InvalidArgument where their ranks would hold a state in other ways all the same.
absl::StatusOr<Compiled> compile_model(const CompileRequest& request);

}  // namespace partita
