// A library kernel of the runtime with operands of its own, to be timed.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/kernel/kernel.h"
#include "tools/calibrate/rank_team.h"

namespace partita {

// A step that calls the library kernel `name`, with dense operands of these shapes and no place for them.
runtime::Step library_step(const char* name, DType dtype, const std::vector<std::vector<int64_t>>& inputs,
                           const std::vector<std::vector<int64_t>>& outputs, runtime::Params params = {});

// Memory of a rank's device, or of the host where it has none, that lives as long as the device or this.
class RankMemory {
 public:
  // Aligned to 64 bytes at least. Small random numbers of `dtype`: what is all zeros takes a GPU less power than
  // training does, and denormals slow sums down.
  absl::StatusOr<std::byte*> numbers(const RankPlace& place, DType dtype, int64_t count);

 private:
  std::vector<std::vector<std::byte>> host_;
};

class BoundKernel {
 public:
  // `step` outlives it. An error where the runtime has no such kernel.
  static absl::StatusOr<std::shared_ptr<BoundKernel>> make(const runtime::Step& step, const RankPlace& place);
  void run() { kernel_->run(buffers_); }

 private:
  std::unique_ptr<runtime::LibraryKernel> kernel_;
  RankMemory memory_;
  std::vector<std::byte*> buffers_;
};

}  // namespace partita
