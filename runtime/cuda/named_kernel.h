// A kernel whose work shows under its ONNX node in NVIDIA's profilers (NVTX ranges; next to nothing where none
// listens).
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/kernel/kernel.h"

namespace partita::runtime {

class NamedKernel final : public LibraryKernel {
 public:
  NamedKernel(std::string name, std::unique_ptr<LibraryKernel> kernel)
      : name_(std::move(name)), kernel_(std::move(kernel)) {}
  void run(std::span<std::byte* const> buffers) override {
    nvtxRangePushA(name_.c_str());
    kernel_->run(buffers);
    nvtxRangePop();
  }

 private:
  std::string name_;
  std::unique_ptr<LibraryKernel> kernel_;
};

}  // namespace partita::runtime
