// The one flow from a model file to the ranks' programs: import, passes, plan, localize, code.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/emit_program.h"
#include "frontend/onnx_import.h"
#include "ir/graph/graph.h"
#include "ir/recipe/recipe.h"
#include "partitioner/compress/compress_gradients.h"
#include "passes/pipeline.h"
#include "runtime/data/data_config.h"
#include "runtime/program/program.h"

namespace partita {

// How far a compilation goes: to the ranks' graphs (what could be refused has been by then), to their programs without
// code (their memory and communication are known), or to the end.
enum class CompileUntil { kPartition, kLayout, kCode };

struct CompileRequest {
  std::string model;  // file or folder
  Recipe recipe;
  std::optional<int64_t> ranks;  // unset: as the pins say, else 1
  TargetOptions target;
  bool keep_gradients = false;
  std::vector<double> room;  // bytes that each stage's program may take; empty: any
  PassOptions passes;
  CompileUntil until = CompileUntil::kCode;
};

// A state whose first value is in the model.
struct InitialTensor {
  std::string name;
  TensorType type;
  Initial value;  // a Literal or a FileRange; of f32 elements where `type` has 16 bits and they have twice its bytes
  bool trained = false;
};

// Forward alone, for inference, on the states of training; no programs where train.yaml has no `evaluate`.
struct CompiledEvaluation {
  Graph serial;  // this and the rest as in Compiled
  std::vector<ProgramClaims> claims;
  std::vector<runtime::Program> programs;
};

struct Compiled {
  std::vector<runtime::Program> programs;  // of the ranks: one, or one for each stage of a pipeline
  Graph serial;                            // what the ranks share out between them, for the verifier
  int64_t samples = 0;                     // a step's, likewise
  std::vector<ProgramClaims> claims;       // what the programs' steps say that they compute, likewise
  CompiledEvaluation evaluation;
  runtime::DataConfig evaluation_data;
  int64_t evaluate_every = 0, evaluate_batches = -1;  // steps; global batches, -1: all of the data
  runtime::DataConfig data;                           // what train.yaml says of the data
  bool data_kind_said = false;
  uint64_t seed = 0;
  std::vector<InitialTensor> weights;
  std::vector<std::string> warnings;
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

// What the user chose that makes training differ from that of the plain model on one device, in lines; "" where
// nothing does.
std::string describe_choices(const Compiled& compiled);

// What the assembler said of a program's generated GPU kernels, each counted once. Nothing for other targets.
struct DeviceCodeSummary {
  int64_t kernels = 0, most_registers = 0;  // registers of a thread
  int64_t spilling = 0, spilled_bytes = 0;  // kernels that spill, and how much a thread of theirs does
  // Kernel steps of a training step, and in how many launches they go; of the stage that has most.
  int64_t steps = 0, launches = 0;
  int64_t communicator_bytes = 0;  // of NCCL's communicators, at least
};
DeviceCodeSummary device_code(const std::vector<runtime::Program>& programs);

// Per stage of an asynchronous pipeline: versions of its weights that are stashed at a time, each with the micro-batch
// in flight that reads it, beside the current one.
std::vector<int64_t> weight_versions(const Compiled& compiled);

// Bytes that one program takes, by region of memory as the manifest names them.
std::map<std::string, int64_t> memory_bytes(const runtime::Program& p);

// Bytes of the device's memory that a rank takes beside the reserve: state, working memory, constants, inputs, and
// those of NCCL's communicators that the reserve has no room for.
double device_bytes(const runtime::Program& p);

// What a recipe says about reading the model.
ImportOptions import_options(const Recipe& recipe);
// The model with its experts' capacity as semantics.moe says. A global batch that the recipe leaves open becomes that
// of the model as it was exported.
absl::StatusOr<ImportedModel> import_model(const std::string& path, const ImportOptions& options, Recipe& recipe);

absl::StatusOr<Compiled> compile_model(const CompileRequest& request);

}  // namespace partita
