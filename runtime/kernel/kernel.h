// Library kernels: the steps that are no generated loop nests (contractions, indexing, scans). Names, operands and
// params are those of the ops, with the attributes as params of the same names; an optional input that is absent is
// either left out at the end or an operand of DType::kInvalid.
//
// All are deterministic, clamp indices instead of reading out of bounds, and run on the OpenMP threads of the calling
// thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/kernel/kernel_scratch.h"
#include "runtime/program/program.h"

namespace partita::runtime {

struct ExecutionConfig {
  int threads = 1;  // omp_get_max_threads() of the rank's thread
  // Shared by all kernels of the rank; the caller allocates it once all are prepared. Null: each kernel has its own.
  std::shared_ptr<KernelScratch> scratch;
  bool reproducible = false;  // ranks of any number of threads have the same bits
};

class LibraryKernel {
 public:
  virtual ~LibraryKernel() = default;
  // The step's operands in order; null for an absent one. From one thread at a time.
  virtual void run(std::span<std::byte* const> buffers) = 0;
};

// Checks shapes, dtypes and params once, and prepares whatever depends on them alone. To be called on the thread that
// will run it. Errors: Unimplemented (no such kernel, or not for this dtype), InvalidArgument (operands do not fit
// together).
absl::StatusOr<std::unique_ptr<LibraryKernel>> prepare_kernel(const Step& step, const ExecutionConfig& config);

std::vector<std::string_view> library_kernel_names();

}  // namespace partita::runtime
