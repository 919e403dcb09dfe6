// One product on the GPU through cuBLASLt, prepared once: C = A B, or C += A B, row-major, and what its epilogue does
// with C (runtime/kernels/matmul_plan.h).
#pragma once

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

// Bytes, of the operands of steps (runtime/program/program.h).
inline constexpr uint32_t kOperandAlignment = 64;
// What is left of it for addresses that are this many bytes apart.
inline uint32_t alignment_at(int64_t bytes) {
  return bytes == 0 ? kOperandAlignment : static_cast<uint32_t>(std::gcd(bytes, int64_t{kOperandAlignment}));
}

// Operands in fp8 with scales (base/math/quantized.h): A [m, k], and B as [n, k].
struct Fp8Operands {
  bool e5m2_a = false, e5m2_b = false, tiles_a = false, tiles_b = false;
};

// A matrix in memory: row-major [rows, columns], or that of its transpose.
struct CudaProduct {
  DType dtype = DType::kF32, out = DType::kF32;
  std::optional<Fp8Operands> fp8 = {};  // dtype is u8 then, and B transposed
  int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;  // elements
  bool accumulate = false, bias = false, relu = false, gelu_tanh = false, gelu_tanh_grad = false, aux = false,
       sum_a = false, sum_b = false;
  bool tf32 = false;  // f32 operands may be rounded to tf32
  double scale = 1;
  bool has_epilogue() const { return bias || relu || gelu_tanh || gelu_tanh_grad || aux || sum_a || sum_b; }
  uint32_t align_a = kOperandAlignment, align_b = kOperandAlignment,
           align_c = kOperandAlignment;  // of addresses, bytes
};

// What an epilogue reads and writes beside C. Not needed ones are null.
struct ProductOperands {
  const std::byte* bias = nullptr;                           // [n]
  std::byte* aux = nullptr;                                  // [m, n]: written before a GELU, read by its gradient
  std::byte* sums = nullptr;                                 // [m] of A, [n] of B
  const std::byte *scales_a = nullptr, *scales_b = nullptr;  // f32, of operands in fp8
};

class CudaMatmul {
 public:
  // Unimplemented where cuBLASLt has no algorithm. Reserves scratch memory.
  static absl::StatusOr<std::unique_ptr<CudaMatmul>> make(CudaDevice& device, const CudaProduct& product);
  ~CudaMatmul();
  CudaMatmul(const CudaMatmul&) = delete;
  CudaMatmul& operator=(const CudaMatmul&) = delete;

  void run(const std::byte* a, const std::byte* b, std::byte* c, const ProductOperands& others = {});
  // What a choice is for: everything that the heuristics know.
  std::string text() const;
  double seconds() const { return seconds_; }  // as it was timed under --tune; else 0

 private:
  CudaMatmul(CudaDevice& device, const CublasLt& lt, const CudaProduct& product)
      : device_(device), lt_(lt), product_(product) {}
  absl::Status describe();
  uint32_t epilogue() const;
  absl::Status set_others(const ProductOperands& others);
  absl::Status choose(cublasLtMatmulPreference_t preference);
  absl::Status take(const cublasLtMatmulAlgo_t& algorithm);
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
  double seconds_ = 0;
};

}  // namespace partita::runtime
