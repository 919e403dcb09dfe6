#include "tools/calibrate/bound_kernel.h"

#include <cstring>
#include <random>

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

namespace {

// Signs and fractions are random, exponents those of 2^-7.
void fill(std::span<std::byte> to, DType dtype) {
  uint32_t changing = 0x807f807f, fixed = 0x3c003c00;  // of two bf16
  if (dtype == DType::kF16) changing = 0x83ff83ff, fixed = 0x20002000;
  if (dtype == DType::kF32) changing = 0x807fffff, fixed = 0x3c000000;
  std::minstd_rand random(1);
  for (size_t at = 0; at < to.size(); at += sizeof(uint32_t)) {
    const uint32_t two = (static_cast<uint32_t>(random()) << 1 & changing) | fixed;
    std::memcpy(to.data() + at, &two, std::min(sizeof two, to.size() - at));
  }
}

}  // namespace

absl::StatusOr<std::byte*> RankMemory::numbers(const RankPlace& place, DType dtype, int64_t count) {
  constexpr size_t kAlignment = 64, kPattern = 1 << 20;
  const size_t bytes = static_cast<size_t>(count * dtype_size(dtype));
  if (place.device == nullptr) {
    std::vector<std::byte>& all = host_.emplace_back(bytes + kAlignment);
    std::byte* at = all.data() + (kAlignment - reinterpret_cast<uintptr_t>(all.data()) % kAlignment) % kAlignment;
    fill({at, bytes}, dtype);
    return at;
  }
  PARTITA_ASSIGN_OR_RETURN(std::byte * at, place.device->allocate(static_cast<int64_t>(bytes)));
  std::vector<std::byte> pattern(std::min(bytes, kPattern));
  fill(pattern, dtype);
  for (size_t done = 0; done < bytes; done += pattern.size())
    PARTITA_RETURN_IF_ERROR(
        place.device->write(at + done, std::span(pattern).first(std::min(pattern.size(), bytes - done))));
  return at;
}

absl::StatusOr<std::shared_ptr<BoundKernel>> BoundKernel::make(const Step& step, const RankPlace& place) {
  auto k = std::make_shared<BoundKernel>();
  if (place.device != nullptr) {
    PARTITA_ASSIGN_OR_RETURN(k->kernel_, place.device->prepare(*place.program, step));
    PARTITA_RETURN_IF_ERROR(place.device->allocate_scratch().status());
  } else {
    PARTITA_ASSIGN_OR_RETURN(k->kernel_, runtime::prepare_kernel(step, {.threads = place.threads}));
  }
  for (const Operand& o : step.operands) {
    k->buffers_.push_back(nullptr);
    if (o.dtype == DType::kInvalid) continue;  // absent
    int64_t count = 1;
    for (int64_t d : o.shape) count *= d;
    PARTITA_ASSIGN_OR_RETURN(k->buffers_.back(), k->memory_.numbers(place, o.dtype, count));
  }
  return k;
}

}  // namespace partita
