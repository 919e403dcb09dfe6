// Sums in a fixed order (train.yaml's reproducible): over a step's micro-batches, and of the squares of blocks.
#include <algorithm>
#include <bit>

#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/kernels_device.h"
#include "runtime/program/tree_sums.h"

namespace partita::runtime {

CudaKernel make_cuda_accumulate_tree(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  int64_t terms = r.i("micro_batches", 0);
  if (r.in(0).shape != r.in(1).shape || r.in(0).shape != r.out(0).shape || r.dtype(0) != r.dtype(1) ||
      r.dtype(0) != r.dtype(2) || terms < 1 || !std::has_single_bit(static_cast<uint64_t>(terms)))
    return r.error("a sum, a term and the next sum of one type, and a power of two of terms");
  if (r.dtype() != DType::kF32 && r.dtype() != DType::kF64) return r.unsupported();
  int64_t count = *element_count(r.out(0).shape);
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat("accumulate_tree_", dtype_name(r.dtype()))));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t next, device.own_kernel("next_term"));
  PARTITA_ASSIGN_OR_RETURN(std::byte * number, device.allocate(sizeof(int64_t)));  // 0 at first
  PARTITA_ASSIGN_OR_RETURN(std::byte * between,
                           device.allocate(tree_levels_between(terms) * count * dtype_size(r.dtype())));
  return make_kernel([&device, kernel, next, number, between, count, terms](std::span<std::byte* const> b) mutable {
    void *lowest = b[0], *term = b[1], *sum = b[2];
    void* arguments[] = {&lowest, &term, &sum, &between, &count, &terms, &number};
    device.launch_items(kernel, count, arguments);
    void* of_next[] = {&number, &terms};
    device.launch(next, dim3(1), 1, of_next);
  });
}

// A piece is added up by a block of threads, by itself, so that the order follows from the shape alone.
CudaKernel make_cuda_block_squares(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  const Shape& shape = r.in(0).shape;
  if (shape.size() != 3 || r.out(0).dtype != DType::kF64 || r.out(0).shape != Shape{shape[1]})
    return r.error("x [before, blocks, block], f64[blocks]");
  if (!is_float(r.dtype())) return r.unsupported();
  constexpr int kThreads = 256;
  int64_t piece = 16384, before = shape[0], blocks = shape[1], block = shape[2];
  int64_t rows = before * blocks, each = (block + piece - 1) / piece;
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t squares, device.own_kernel(cat("block_squares_", dtype_name(r.dtype()))));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t add, device.own_kernel("add_pieces"));
  PARTITA_ASSIGN_OR_RETURN(auto scratch,
                           DeviceScratch::make(device, rows * each * static_cast<int64_t>(sizeof(double))));
  return make_kernel([&device, squares, add, scratch, piece, before, blocks, block, rows,
                      each](std::span<std::byte* const> b) mutable {
    constexpr int64_t kMostBlocks = 1 << 16;
    void *x = b[0], *y = b[1], *pieces = scratch->data();
    void* of_squares[] = {&x, &pieces, &rows, &block, &piece};
    if (rows * each > 0)
      device.launch(squares, dim3(static_cast<unsigned>(std::min(rows * each, kMostBlocks))), kThreads, of_squares);
    void* of_add[] = {&pieces, &y, &before, &blocks, &each};
    device.launch_items(add, blocks, of_add);
  });
}

}  // namespace partita::runtime
