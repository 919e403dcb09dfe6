// The reduction kernels for the GPU that is this machine.
#include <algorithm>
#include <string>

#include "tests/stand_ins/cuda/kernels.h"

namespace {
thread_local dim3 blockIdx, blockDim, gridDim, threadIdx;
}
#undef __device__
#define __device__
#define KERNEL static
#include "tests/stand_ins/nccl/reduce.cu"

extern "C" const unsigned char partita_kernels_reduce[] = "stand-in kernels: reduce";

namespace {

using namespace partita::stand_in;

// Threads that never wait for each other, one after the other.
void run_grid(const Launch& launch, const Work& body) {
  gridDim = launch.blocks, blockDim = launch.threads;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) body();
  }
}

const bool kRegistered = [] {
  constexpr void (*kKernels[])(ReduceArguments) = {reduce_0, reduce_1, reduce_2, reduce_3, reduce_4,
                                                   reduce_5, reduce_6, reduce_7, reduce_8, reduce_9};
  for (size_t k = 0; k < std::size(kKernels); ++k)
    register_kernel("reduce", "reduce_" + std::to_string(k), kernel_maker(run_grid, kKernels[k]));
  return true;
}();

}  // namespace
