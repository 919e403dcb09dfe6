// Runs one library kernel on tensors of doubles, whatever its element types.
#pragma once

#include <omp.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/box.h"
#include "gtest/gtest.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

struct TestTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<double> values;  // filled with zeros where it is left empty

  int64_t count() const { return *element_count(shape); }
};

inline TestTensor zeros(DType dtype, std::vector<int64_t> shape) {
  TestTensor t{dtype, std::move(shape), {}};
  t.values.assign(static_cast<size_t>(t.count()), 0);
  return t;
}
inline TestTensor tensor(DType dtype, std::vector<int64_t> shape, std::vector<double> values) {
  return {dtype, std::move(shape), std::move(values)};
}

// Multiples of 1/64 in [-1, 1]: exact in every float type but the sums.
inline TestTensor random_tensor(DType dtype, std::vector<int64_t> shape, unsigned seed) {
  TestTensor t = zeros(dtype, std::move(shape));
  std::mt19937 random(seed);
  for (double& v : t.values) v = (static_cast<double>(random() % 129) - 64) / 64;
  return t;
}
inline TestTensor random_integers(DType dtype, std::vector<int64_t> shape, int64_t low, int64_t high, unsigned seed) {
  TestTensor t = zeros(dtype, std::move(shape));
  std::mt19937 random(seed);
  for (double& v : t.values)
    v = static_cast<double>(low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low)));
  return t;
}

template <typename F>
void with_any_type(DType dtype, F&& f) {
  if (dtype == DType::kBool) return f(uint8_t{});
  with_number_type(dtype, f);
}

// The buffer is a heap block of exactly the tensor's size, so that sanitizers see every byte too far.
inline std::vector<std::byte> to_bytes(const TestTensor& t) {
  std::vector<std::byte> bytes(static_cast<size_t>(t.count() * dtype_size(t.dtype)));
  with_any_type(t.dtype, [&]<typename T>(T) {
    for (size_t i = 0; i < t.values.size(); ++i) {
      const T value = static_cast<T>(static_cast<Accumulator<T>>(t.values[i]));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}
inline void from_bytes(const std::vector<std::byte>& bytes, TestTensor& t) {
  t.values.resize(static_cast<size_t>(t.count()));
  with_any_type(t.dtype, [&]<typename T>(T) {
    for (size_t i = 0; i < t.values.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      t.values[i] = static_cast<double>(static_cast<Accumulator<T>>(value));
    }
  });
}

inline absl::Status run_kernel(const std::string& name, const std::vector<TestTensor>& inputs,
                               std::vector<TestTensor>& outputs, Params params = {}, int threads = 2) {
  omp_set_num_threads(threads);
  Step step{.kind = StepKind::kLibrary,
            .name = name,
            .inputs = static_cast<int32_t>(inputs.size()),
            .params = std::move(params)};
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> buffers;
  for (const auto* list : {&inputs, static_cast<const std::vector<TestTensor>*>(&outputs)}) {
    for (const TestTensor& t : *list) {
      step.operands.push_back({.dtype = t.dtype, .shape = t.shape});
      memory.push_back(to_bytes(t));
    }
  }
  for (size_t i = 0; i < memory.size(); ++i)
    buffers.push_back(step.operands[i].dtype == DType::kInvalid ? nullptr : memory[i].data());
  auto kernel = prepare_kernel(step, {.threads = threads});
  if (!kernel.ok()) return kernel.status();
  (*kernel)->run(buffers);
  for (size_t i = 0; i < outputs.size(); ++i) from_bytes(memory[inputs.size() + i], outputs[i]);
  return absl::OkStatus();
}

inline TestTensor run_one(const std::string& name, const std::vector<TestTensor>& inputs, TestTensor output,
                          Params params = {}, int threads = 2) {
  std::vector<TestTensor> outputs = {std::move(output)};
  const absl::Status status = run_kernel(name, inputs, outputs, std::move(params), threads);
  EXPECT_TRUE(status.ok()) << status;
  return outputs[0];
}

inline void expect_close(const TestTensor& found, const std::vector<double>& expected, double tolerance,
                         const std::string& what = "") {
  ASSERT_EQ(found.values.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(found.values[i])) continue;
    if (expected[i] == found.values[i]) continue;
    ASSERT_NEAR(found.values[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << what << " at " << i;
  }
}

inline double tolerance_of(DType dtype) {
  return dtype == DType::kF64    ? 1e-12
         : dtype == DType::kF32  ? 2e-5
         : dtype == DType::kF16  ? 4e-3
         : dtype == DType::kBF16 ? 3e-2
                                 : 0;
}

}  // namespace partita::runtime
