// A library kernel of the runtime with operands of its own, to be timed.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace partita {

// A step that calls the library kernel `name`, with dense operands of these shapes and no place for them.
runtime::Step library_step(const char* name, DType dtype, const std::vector<std::vector<int64_t>>& inputs,
                           const std::vector<std::vector<int64_t>>& outputs, runtime::Params params = {});

class BoundKernel {
 public:
  // The operands hold small numbers. An error where the runtime has no such kernel.
  static absl::StatusOr<std::shared_ptr<BoundKernel>> make(const runtime::Step& step, int threads);
  void run() { kernel_->run(buffers_); }

 private:
  std::unique_ptr<runtime::LibraryKernel> kernel_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> buffers_;
};

}  // namespace partita
