#include "runtime/cuda/ordered_sums.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

constexpr int64_t kBytes = 16 << 20;  // of all rows
constexpr int kThreads = 256;

}  // namespace

absl::Status OrderedSums::prepare(std::span<const CollectiveOp> operations) {
  for (const CollectiveOp& op : operations) {
    if (!has(op)) continue;
    if (op.dtype != DType::kF32 && op.dtype != DType::kF64)
      return absl::UnimplementedError(
          cat(describe(op), ": sums over GPUs have a fixed order in f32 and f64, not in ", dtype_name(op.dtype)));
    if (rows_ != nullptr) continue;
    PARTITA_ASSIGN_OR_RETURN(f32_, device_.own_kernel("tree_sum_f32"));
    PARTITA_ASSIGN_OR_RETURN(f64_, device_.own_kernel("tree_sum_f64"));
    PARTITA_ASSIGN_OR_RETURN(rows_, device_.allocate(kBytes));
  }
  return absl::OkStatus();
}

int64_t OrderedSums::piece(DType dtype, int rows) const {
  return std::max<int64_t>(1, kBytes / dtype_size(dtype) / rows);
}

absl::Status OrderedSums::add(DType dtype, std::byte* at, int64_t stride, int rows, std::byte* sum, int64_t count,
                              cudaStream_t stream) const {
  if (count == 0) return absl::OkStatus();
  const int64_t most = int64_t{device_.properties().multiProcessorCount} * 32;
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, most));
  const cudaKernel_t kernel = dtype == DType::kF32 ? f32_ : f64_;
  void* arguments[] = {&at, &stride, &rows, &sum, &count};
  const cudaError_t e =
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(kThreads), arguments, 0, stream);
  return e == cudaSuccess ? absl::OkStatus() : cuda_error("a sum's launch", e);
}

}  // namespace partita::runtime
