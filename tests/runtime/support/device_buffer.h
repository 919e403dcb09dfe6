// A tensor as kernels find it in device memory.
#pragma once

#include "tests/runtime/support/kernel_harness.h"

namespace partita::runtime {

// Aligned to 16 bytes, as device memory is.
struct DeviceBuffer {
  struct alignas(16) Piece {
    std::byte bytes[16];
  };
  std::vector<Piece> memory;
  TestTensor tensor;

  explicit DeviceBuffer(TestTensor t) : tensor(std::move(t)) {
    std::vector<std::byte> bytes;
    if (tensor.dtype != DType::kInvalid) bytes = to_bytes(tensor);
    if (tensor.dtype != DType::kInvalid) from_bytes(bytes, tensor);
    memory.resize(bytes.size() / 16 + 1);
    std::copy(bytes.begin(), bytes.end(), as<std::byte>());
  }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(memory.data());
  }
  const TestTensor& read() {
    const size_t size = static_cast<size_t>(tensor.count() * dtype_size(tensor.dtype));
    const std::byte* data = as<std::byte>();
    from_bytes(std::vector<std::byte>(data, data + size), tensor);
    return tensor;
  }
};

}  // namespace partita::runtime
