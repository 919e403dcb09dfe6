// The steps of a program for a GPU, counted: what each reads and writes, and what its kernels execute.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "runtime/program/program.h"
#include "tests/counts/sampled_launch.h"

namespace partita::counts {

enum class RowKind {
  kGenerated,  // code of the compiler's: counted
  kOwn,        // a kernel of runtime/cuda/kernels: counted
  kVendor,     // cuBLASLt's or cuDNN's: by its operands and its arithmetic
  kCopy,       // by the driver
};

// Steps with the same code and shapes.
struct Row {
  RowKind kind = RowKind::kGenerated;
  std::string kernel, origin;  // the step's name; the ONNX node of the first such step
  int64_t count = 0;           // launches of a training step: a step's, or a batched launch's
  int64_t steps = 1;           // in one of them
  double flops = 0;            // of one, as the compiler counts them
  Precision precision = Precision::kFp32;
  bool is_product = false;  // of the matrix units
  // Counted ones.
  std::vector<Launched> launches;
  std::vector<ExtentUse> uses;
  double block_sectors = 0;
  int registers = 0;  // of a thread; 0: not known
  int64_t spilled_bytes = 0;
  // Bytes of one: each byte of an input that is looked at, once, and each of an output.
  double least_read = 0, least_written = 0;
  double least() const { return least_read + least_written; }
  int64_t kernels() const { return launches.empty() ? 1 : static_cast<int64_t>(launches.size()); }
};

struct CountedProgram {
  std::vector<Row> rows;  // in the order of the program
  int64_t launches = 0;   // of a training step, generated code and library steps
  int64_t host_steps = 0, collectives = 0;
  std::vector<std::string> not_counted;  // steps that no kernel was made for, and why
};

// Of one training step. `program` is one whose kernels are PTX, too. Registers and spills are what `assembler` says,
// where it is not empty. FailedPrecondition where there is no PTX; what the interpreter refuses.
absl::StatusOr<CountedProgram> count_program(runtime::Program program, const std::string& assembler);

}  // namespace partita::counts
