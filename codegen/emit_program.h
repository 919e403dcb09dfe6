// The last step of the compiler: a rank's graph becomes the program that the runtime executes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/nest/nest_text.h"
#include "ir/pipeline/pass_run.h"
#include "partitioner/localize/local_program.h"
#include "runtime/program/claim.h"
#include "runtime/program/program.h"

namespace partita {

struct TargetOptions {
  std::string cpu = "host";  // or "x86-64-v3", "x86-64-v4", or another x86-64 that LLVM knows (AVX2 and FMA at least)
  // "sm_90" and the like: kernels for that GPU instead (codegen/nvptx/), and for an x86-64-v3 host where states are
  // kept in its memory.
  std::string gpu;
  std::string assembler;  // gpu: the ptxas to run; empty: PTX alone, which the device's driver compiles when it loads
  bool fuse = true;       // no: one kernel per node
  bool epilogues = true;  // gpu: products do what follows them, where they can (product_epilogues.h)
  bool in_place = true;   // no: every value has memory of its own while it lives
  bool strict = false;    // numbers of a node do not depend on what else its kernel computes (LoopNest::strict)

  // It multiplies fp8 numbers with a scale for each block of 128 (fp8_products.h).
  bool has_fp8() const { return gpu.rfind("sm_90", 0) == 0 && !strict; }
  // What rows of products' operands are best multiples of, in bytes: a GPU's cache lines. Layout::row_bytes
  int64_t row_bytes() const { return gpu.empty() ? 1 : 128; }
};

// What the steps of a program say of themselves, for the verifier.
struct ProgramClaims {
  Graph graph;               // the local graph; nodes and values of steps are those of it with composites expanded
  std::vector<Claim> steps;  // by step id
  KernelNests nests;         // that its kernels were made from
};

struct EmittedProgram {
  runtime::Program program;
  ProgramClaims claims;
};

// How far: to the program's memory, steps and communication (no claims then), or to the code of its kernels.
enum class EmitUntil { kMemory, kCode };

// The programs of all stages, after the passes of code generation (codegen/prepare/code_passes.h); none where `run`
// stopped. InvalidArgument for a processor that code cannot be made for; see compile_device_nests for GPUs.
absl::StatusOr<std::vector<EmittedProgram>> emit_programs(const std::vector<LocalProgram>& programs,
                                                          const TargetOptions& options, EmitUntil until, PassRun& run);
// One program alone.
absl::StatusOr<runtime::Program> emit_program(const LocalProgram& local, const TargetOptions& options = {});

// The loop nests of the same program, by the names of their kernels; of a GPU's steps alone, where it is for one.
struct ProgramNest {
  std::string name;
  LoopNest nest;
  bool batched = false;  // for several launches at once
};
std::vector<ProgramNest> program_nests(const LocalProgram& local, const TargetOptions& options = {});

// The fused steps and loop nests of the same program, to read.
std::string describe_program(const LocalProgram& local, const TargetOptions& options = {});

}  // namespace partita
