// One product on the GPU through cuBLASLt, prepared once: C = A B, or C += A B, row-major.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

// Bytes, of the operands of steps (runtime/program.h).
inline constexpr uint32_t kOperandAlignment = 64;
// What is left of it for addresses that are this many bytes apart.
inline uint32_t alignment_at(int64_t bytes) {
  return bytes == 0 ? kOperandAlignment : static_cast<uint32_t>(std::gcd(bytes, int64_t{kOperandAlignment}));
}

// A matrix in memory: row-major [rows, columns], or that of its transpose.
struct CudaProduct {
  DType dtype = DType::kF32, out = DType::kF32;
  int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;  // elements
  bool accumulate = false, bias = false, relu = false, gelu_tanh = false;
  bool tf32 = false;  // f32 operands may be rounded to tf32
  double scale = 1;
  uint32_t align_a = kOperandAlignment, align_b = kOperandAlignment,
           align_c = kOperandAlignment;  // of addresses, bytes
};

class CudaMatmul {
 public:
  // Unimplemented where cuBLASLt has no algorithm. Reserves scratch memory.
  static absl::StatusOr<std::unique_ptr<CudaMatmul>> make(CudaDevice& device, const CudaProduct& product);
  ~CudaMatmul();
  CudaMatmul(const CudaMatmul&) = delete;
  CudaMatmul& operator=(const CudaMatmul&) = delete;

  void run(const std::byte* a, const std::byte* b, const std::byte* bias, std::byte* c);

 private:
  CudaMatmul(CudaDevice& device, const CublasLt& lt, const CudaProduct& product)
      : device_(device), lt_(lt), product_(product) {}
  absl::Status describe();
  std::string text() const;
  absl::Status choose(cublasLtMatmulPreference_t preference);
  absl::Status take(const cublasLtMatmulAlgo_t& algorithm, size_t workspace);
  absl::StatusOr<double> time(const cublasLtMatmulHeuristicResult_t& candidate, const std::byte* a, const std::byte* b,
                              std::byte* c, std::byte* workspace);
  absl::StatusOr<size_t> fastest(const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                                 std::vector<double>& seconds);
  cublasStatus_t launch(const cublasLtMatmulAlgo_t& algorithm, const std::byte* a, const std::byte* b, std::byte* c,
                        std::byte* workspace, size_t workspace_bytes);
  absl::Status check(cublasStatus_t status, const char* call) const;

  CudaDevice& device_;
  const CublasLt& lt_;
  CudaProduct product_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  size_t workspace_ = 0;
};

}  // namespace partita::runtime
