// Sums over ranks in the order that hosts have (runtime/communicate/collective.h); those of NCCL have one that depends
// on the ranks and on how they are connected. The ranks' terms lie in rows of scratch memory, and a kernel adds them up
// as a balanced binary tree.
#pragma once

#include <span>

#include "runtime/communicate/collective.h"
#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

class OrderedSums {
 public:
  explicit OrderedSums(CudaDevice& device) : device_(device) {}

  // Whether an operation is such a sum: of whole numbers every order gives the same.
  static bool has(const CollectiveOp& op) {
    return op.in_order && op.reduce == ReduceOp::kSum && is_float(op.dtype) &&
           (op.kind == CollectiveKind::kAllReduce || op.kind == CollectiveKind::kReduceScatter);
  }
  // Makes room, and finds the kernels, where one of the operations is. Before any is issued. Unimplemented for sums of
  // 16 bits.
  absl::Status prepare(std::span<const CollectiveOp> operations);

  // Elements of a row, of which there are so many.
  int64_t piece(DType dtype, int rows) const;
  std::byte* rows() const { return rows_; }
  // sum = the tree over `rows` rows of `count` elements from `at` on, `stride` elements apart. It uses them up.
  absl::Status add(DType dtype, std::byte* at, int64_t stride, int rows, std::byte* sum, int64_t count,
                   cudaStream_t stream) const;

 private:
  CudaDevice& device_;
  std::byte* rows_ = nullptr;
  cudaKernel_t f32_ = nullptr, f64_ = nullptr;
};

}  // namespace partita::runtime
