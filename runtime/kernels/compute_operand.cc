#include "runtime/kernels/compute_operand.h"

namespace partita::runtime {
namespace {

void convert(DType from_type, const std::byte* from, DType to_type, std::byte* to, int64_t count) {
  with_float_type(from_type, [&]<typename From>(From) {
    with_float_type(to_type, [&]<typename To>(To) {
      const From* x = reinterpret_cast<const From*>(from);
      To* y = as<To>(to);
#pragma omp parallel for schedule(static) if (worth_threads(count))
      for (int64_t i = 0; i < count; ++i)
        y[i] = static_cast<To>(static_cast<Accumulator<To>>(static_cast<Accumulator<From>>(x[i])));
    });
  });
}

}  // namespace

std::byte* ComputeOperand::input(std::byte* buffer, std::byte* scratch) const {
  if (dtype_ == compute_ || buffer == nullptr) return buffer;
  convert(dtype_, buffer, compute_, scratch + at_, count_);
  return scratch + at_;
}

void ComputeOperand::finish(std::byte* buffer, std::byte* scratch) const {
  if (dtype_ != compute_) convert(compute_, scratch + at_, dtype_, buffer, count_);
}

namespace {

class WidenedKernel final : public LibraryKernel {
 public:
  WidenedKernel(const KernelRequest& r, std::vector<ComputeOperand> operands)
      : operands_(std::move(operands)),
        inputs_(r.inputs()),
        accumulates_(r.s("epilogue", "").find("accumulate") != std::string::npos),
        memory_(r.scratch()) {}

  // Before it runs: the kernel on the copies, which has a scratch memory of its own beside them.
  void take(std::unique_ptr<LibraryKernel> kernel) { kernel_ = std::move(kernel); }

  void run(std::span<std::byte* const> buffers) override {
    std::byte* scratch = memory_->data();
    std::vector<std::byte*> wide;
    for (size_t k = 0; k < operands_.size(); ++k) {
      bool read = k < inputs_ || accumulates_;
      wide.push_back(read ? operands_[k].input(buffers[k], scratch) : operands_[k].output(buffers[k], scratch));
    }
    kernel_->run(wide);
    for (size_t k = inputs_; k < operands_.size(); ++k) operands_[k].finish(buffers[k], scratch);
  }

 private:
  std::vector<ComputeOperand> operands_;
  const size_t inputs_;
  const bool accumulates_;
  std::shared_ptr<KernelScratch> memory_;
  std::unique_ptr<LibraryKernel> kernel_;
};

}  // namespace

Kernel make_widened(const KernelRequest& r, Kernel (*make)(const KernelRequest&)) {
  Step step = r.step();
  ScratchLayout layout;
  std::vector<ComputeOperand> operands;
  for (Operand& o : step.operands) {
    operands.emplace_back(o, DType::kF32, /*kept=*/dtype_size(o.dtype) != 2, layout);
    if (is_float(o.dtype) && dtype_size(o.dtype) == 2) o.dtype = DType::kF32;
  }
  r.scratch()->reserve(layout.bytes());
  auto own = std::make_shared<KernelScratch>();
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<LibraryKernel> kernel,
                           make(KernelRequest(step, {r.threads(), own, r.reproducible()})));
  PARTITA_RETURN_IF_ERROR(own->allocate());
  auto widened = std::make_unique<WidenedKernel>(r, std::move(operands));
  widened->take(std::move(kernel));
  return widened;
}

}  // namespace partita::runtime
