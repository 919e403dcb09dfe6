// Matrices transposed, one beside the other: [planes, rows, columns] -> [planes, columns, rows], by tiles of 32 x 32 that
// go through shared memory. A block has 32 x 8 threads.
#include "runtime/cuda/kernels/device.h"

namespace {

template <typename T>
__device__ void turn(const T* x, T* y, int64_t planes, int64_t rows, int64_t columns) {
  constexpr int kTile = 32;
  __shared__ T tile[kTile][kTile + 1];
  const int lane = static_cast<int>(threadIdx.x) % kTile, team = static_cast<int>(threadIdx.x) / kTile;
  const int64_t down = (rows + kTile - 1) / kTile, across = (columns + kTile - 1) / kTile;
  for (int64_t t = blockIdx.x; t < planes * down * across; t += gridDim.x) {
    const int64_t at = t / across % down * kTile, left = t % across * kTile;
    const int64_t plane = t / across / down * rows * columns;
    for (int k = team; k < kTile; k += 8) {
      if (at + k < rows && left + lane < columns) tile[k][lane] = x[plane + (at + k) * columns + left + lane];
    }
    __syncthreads();
    for (int k = team; k < kTile; k += 8) {
      if (left + k < columns && at + lane < rows) y[plane + (left + k) * rows + at + lane] = tile[lane][k];
    }
    __syncthreads();
  }
}

}  // namespace

// By the size of an element.
KERNEL void turn_2(const uint16_t* x, uint16_t* y, int64_t planes, int64_t rows, int64_t columns) {
  turn(x, y, planes, rows, columns);
}
KERNEL void turn_4(const uint32_t* x, uint32_t* y, int64_t planes, int64_t rows, int64_t columns) {
  turn(x, y, planes, rows, columns);
}
