// What a kernel factory works with: a step's operands and attributes, and small tools that all kernels share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/float16.h"
#include "base/status.h"
#include "runtime/kernel/kernel.h"
#include "runtime/program/params.h"

namespace partita::runtime {

using Shape = std::vector<int64_t>;
using Kernel = absl::StatusOr<std::unique_ptr<LibraryKernel>>;

class KernelRequest {
 public:
  KernelRequest(const Step& step, const ExecutionConfig& config) : step_(step), config_(config) {}

  const Step& step() const { return step_; }
  int threads() const { return config_.threads; }
  bool reproducible() const { return config_.reproducible; }
  // Never null. Its memory is there when the kernel runs, at the same place each time, holding anything.
  const std::shared_ptr<KernelScratch>& scratch() const { return config_.scratch; }
  size_t inputs() const { return static_cast<size_t>(step_.inputs); }
  size_t outputs() const { return step_.operands.size() - inputs(); }
  const Operand& in(size_t i) const { return step_.operands[i]; }
  const Operand& out(size_t i) const { return step_.operands[inputs() + i]; }
  bool has_input(size_t i) const { return i < inputs() && in(i).dtype != DType::kInvalid; }
  DType dtype(size_t i = 0) const { return step_.operands[i].dtype; }

  int64_t i(const std::string& name, int64_t otherwise) const { return int_param(step_.params, name, otherwise); }
  bool has_param(const std::string& name) const { return step_.params.contains(name); }
  double f(const std::string& name, double otherwise) const { return real_param(step_.params, name, otherwise); }
  std::string s(const std::string& name, const std::string& otherwise) const {
    return text_param(step_.params, name, otherwise);
  }
  Shape ints(const std::string& name, Shape otherwise = {}) const {
    return ints_param(step_.params, name, std::move(otherwise));
  }

  // The operands as text, for messages: "f32[2, 3], i64[3] -> f32[2, 3]".
  std::string types() const;
  absl::Status error(std::string_view expected) const;
  absl::Status unsupported() const;
  // InvalidArgument unless there are that many operands and all are present, but for inputs from `optional_from`
  // (least_inputs) on.
  absl::Status expect_operands(size_t least_inputs, size_t most_inputs, size_t outputs, int optional_from = -1) const;

 private:
  const Step& step_;
  const ExecutionConfig& config_;
};

template <typename F>
class FunctionKernel final : public LibraryKernel {
 public:
  explicit FunctionKernel(F function) : function_(std::move(function)) {}
  void run(std::span<std::byte* const> buffers) override { function_(buffers); }

 private:
  F function_;
};

template <typename F>
Kernel make_kernel(F function) {
  return std::make_unique<FunctionKernel<F>>(std::move(function));
}

// 16-bit floats that compute in float.
struct BF16 {
  uint16_t bits = 0;
  BF16() = default;
  BF16(float x) : bits(float_to_bf16(x)) {}
  operator float() const { return bf16_to_float(bits); }
};
struct F16 {
  uint16_t bits = 0;
  F16() = default;
  F16(float x) : bits(float_to_f16(x)) {}
  operator float() const { return f16_to_float(bits); }
};

template <typename T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<BF16> {
  using type = float;
};
template <>
struct AccumulatorOf<F16> {
  using type = float;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

// Calls f with a value of the type that `dtype` stands for; false where it has none.
template <typename F>
bool with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      f(float{});
      return true;
    case DType::kF64:
      f(double{});
      return true;
    case DType::kBF16:
      f(BF16{});
      return true;
    case DType::kF16:
      f(F16{});
      return true;
    default:
      return false;
  }
}
template <typename F>
bool with_integer_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kI8:
      f(int8_t{});
      return true;
    case DType::kU8:
      f(uint8_t{});
      return true;
    case DType::kI16:
      f(int16_t{});
      return true;
    case DType::kU16:
      f(uint16_t{});
      return true;
    case DType::kI32:
      f(int32_t{});
      return true;
    case DType::kU32:
      f(uint32_t{});
      return true;
    case DType::kI64:
      f(int64_t{});
      return true;
    case DType::kU64:
      f(uint64_t{});
      return true;
    default:
      return false;
  }
}
template <typename F>
bool with_number_type(DType dtype, F&& f) {
  return with_float_type(dtype, f) || with_integer_type(dtype, f);
}
// For kernels that only move elements.
template <typename F>
bool with_storage_type(DType dtype, F&& f) {
  switch (dtype_size(dtype)) {
    case 1:
      f(uint8_t{});
      return true;
    case 2:
      f(uint16_t{});
      return true;
    case 4:
      f(uint32_t{});
      return true;
    case 8:
      f(uint64_t{});
      return true;
    default:
      return false;
  }
}
template <typename F>
bool with_index_type(DType dtype, F&& f) {
  if (dtype == DType::kI64) return f(int64_t{}), true;
  if (dtype == DType::kI32) return f(int32_t{}), true;
  return false;
}

template <typename T>
T* as(std::byte* buffer) {
  return reinterpret_cast<T*>(buffer);
}

// A negative index counts from the end; one outside goes to the nearest element. size >= 1.
template <typename I>
int64_t clamp_index(I index, int64_t size) {
  const int64_t i = static_cast<int64_t>(index);
  return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size - 1);
}

inline int64_t product(std::span<const int64_t> dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}
inline int64_t product(const Shape& shape, size_t begin, size_t end) {
  return product(std::span(shape).subspan(begin, end - begin));
}

// Whether a loop over so many element operations is worth the team.
inline bool worth_threads(int64_t work) { return work >= 16384; }

// A dimension's position in `rank`, negative ones from the end; -1 when outside.
inline int64_t resolve_dim(int64_t dim, size_t rank) {
  const int64_t r = static_cast<int64_t>(rank), d = dim < 0 ? dim + r : dim;
  return d >= 0 && d < r ? d : -1;
}

}  // namespace partita::runtime
