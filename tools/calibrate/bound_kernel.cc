#include "tools/calibrate/bound_kernel.h"

#include "base/status.h"

namespace partita {

using runtime::Operand;
using runtime::Step;

Step library_step(const char* name, DType dtype, const std::vector<std::vector<int64_t>>& inputs,
                  const std::vector<std::vector<int64_t>>& outputs, runtime::Params params) {
  Step step;
  step.kind = runtime::StepKind::kLibrary;
  step.name = name;
  step.params = std::move(params);
  step.inputs = static_cast<int32_t>(inputs.size());
  for (const auto* list : {&inputs, &outputs}) {
    for (const auto& s : *list) step.operands.push_back({.dtype = dtype, .shape = s});
  }
  return step;
}

absl::StatusOr<std::shared_ptr<BoundKernel>> BoundKernel::make(const Step& step, int threads) {
  auto k = std::make_shared<BoundKernel>();
  PARTITA_ASSIGN_OR_RETURN(k->kernel_, runtime::prepare_kernel(step, {.threads = threads}));
  for (const Operand& o : step.operands) {
    int64_t count = 1;
    for (int64_t d : o.shape) count *= d;
    // A byte pattern that is a number near 2e-2 in every float type: denormals would slow sums down.
    auto& buffer = k->memory_.emplace_back(static_cast<size_t>(count * dtype_size(o.dtype)) + 64, std::byte{0x3c});
    k->buffers_.push_back(buffer.data() + (64 - reinterpret_cast<uintptr_t>(buffer.data()) % 64) % 64);
  }
  return k;
}

}  // namespace partita
