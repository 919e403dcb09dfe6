// A block's elements are cut into pieces of kPiece, and the sums of pieces are added up one after the other, so that
// the order does not depend on the threads, nor on the other blocks.
#include <algorithm>

#include "runtime/kernels/kernel_request.h"
#include "runtime/kernels/table.h"

namespace partita::runtime {
namespace {

constexpr int64_t kPiece = 16384;  // elements
constexpr int64_t kLanes = 16;     // sums side by side in a piece

template <typename T>
double squares(const T* x, int64_t count) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      const double v = static_cast<double>(static_cast<Accumulator<T>>(x[i + k]));
      lanes[k] += v * v;
    }
  }
  for (int64_t k = 0; i < count; ++i, ++k) {
    const double v = static_cast<double>(static_cast<Accumulator<T>>(x[i]));
    lanes[k] += v * v;
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}

// Rows of `block` elements, `before` times those of all blocks; `pieces` holds the sums of theirs.
template <typename T>
void block_squares(const T* x, double* pieces, double* y, int64_t before, int64_t blocks, int64_t block) {
  const int64_t each = (block + kPiece - 1) / kPiece, rows = before * blocks;
#pragma omp parallel for schedule(static) if (worth_threads(rows * block))
  for (int64_t p = 0; p < rows * each; ++p) {
    const int64_t begin = p % each * kPiece;
    pieces[p] = squares(x + p / each * block + begin, std::min(kPiece, block - begin));
  }
  std::fill_n(y, blocks, 0.0);
  for (int64_t p = 0; p < rows * each; ++p) y[p / each % blocks] += pieces[p];
}

}  // namespace

Kernel make_block_squares(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  const Shape& shape = r.in(0).shape;
  if (shape.size() != 3 || r.out(0).dtype != DType::kF64 || r.out(0).shape != Shape{shape[1]})
    return r.error("x [before, blocks, block], f64[blocks]");
  const int64_t before = shape[0], blocks = shape[1], block = shape[2];
  r.scratch()->reserve(before * blocks * ((block + kPiece - 1) / kPiece) * static_cast<int64_t>(sizeof(double)));
  Kernel kernel = r.unsupported();
  with_float_type(r.dtype(), [&]<typename T>(T) {
    kernel = make_kernel([=, memory = r.scratch()](std::span<std::byte* const> b) {
      block_squares(as<T>(b[0]), as<double>(memory->data()), as<double>(b[1]), before, blocks, block);
    });
  });
  return kernel;
}

}  // namespace partita::runtime
