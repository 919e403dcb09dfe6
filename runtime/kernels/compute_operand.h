// Operands of 16-bit floats for kernels that compute in f32.
#pragma once

#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

// An operand in the type that is computed in: itself, or a copy that is made before the kernel and written back after
// it.
class ComputeOperand {
 public:
  // A bool operand stays as it is, and so does one that is `kept`.
  ComputeOperand(const Operand& operand, DType compute, bool kept, ScratchLayout& layout)
      : dtype_(operand.dtype),
        compute_(is_float(operand.dtype) && !kept ? compute : operand.dtype),
        count_(product(operand.shape)),
        at_(dtype_ == compute_ ? 0 : layout.take(count_ * dtype_size(compute_))) {}

  // What to read, or where to write, in place of `buffer`.
  std::byte* input(std::byte* buffer, std::byte* scratch) const;
  std::byte* output(std::byte* buffer, std::byte* scratch) const { return dtype_ == compute_ ? buffer : scratch + at_; }
  // After the kernel has written output(buffer).
  void finish(std::byte* buffer, std::byte* scratch) const;

 private:
  DType dtype_, compute_;
  int64_t count_, at_;
};

// The step's kernel as `make` makes it for the same step on f32 copies of all 16-bit operands: where no library
// computes in the type itself.
Kernel make_widened(const KernelRequest& r, Kernel (*make)(const KernelRequest&));

}  // namespace partita::runtime
