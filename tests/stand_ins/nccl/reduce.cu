// output[i] = sources[0][i] op sources[1][i] op …: in rank order, 16-bit elements in f32 and rounded once, integers
// around their ends, a NaN where there is one: as reduce_in_order() of the runtime does it.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"
#include "tests/stand_ins/nccl/reduce.h"

template <typename T>
__device__ inline T added(T a, T b) {
  return a + b;
}
__device__ inline int32_t added(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }
__device__ inline int64_t added(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
template <typename T>
__device__ inline T combined(T a, T b, int32_t reduction) {
  if (reduction == 0) return added(a, b);
  if (a != a) return a;
  if (b != b) return b;
  return reduction == 2 ? (b > a ? b : a) : (b < a ? b : a);
}

template <typename T>
__device__ void reduce(const ReduceArguments& z) {
  for (int64_t i = first_item(); i < z.count; i += item_step()) {
    Wide<T> total = wide(static_cast<const T*>(z.sources[0])[i]);
    for (int r = 1; r < z.ranks; ++r)
      total = combined(total, wide(static_cast<const T*>(z.sources[r])[i]), z.reduction);
    static_cast<T*>(z.output)[i] = narrow<T>(total);
  }
}

// Named by ncclDataType_t's numbers.
KERNEL void reduce_0(ReduceArguments z) { reduce<int8_t>(z); }
KERNEL void reduce_1(ReduceArguments z) { reduce<uint8_t>(z); }
KERNEL void reduce_2(ReduceArguments z) { reduce<int32_t>(z); }
KERNEL void reduce_3(ReduceArguments z) { reduce<uint32_t>(z); }
KERNEL void reduce_4(ReduceArguments z) { reduce<int64_t>(z); }
KERNEL void reduce_5(ReduceArguments z) { reduce<uint64_t>(z); }
KERNEL void reduce_6(ReduceArguments z) { reduce<DeviceF16>(z); }
KERNEL void reduce_7(ReduceArguments z) { reduce<float>(z); }
KERNEL void reduce_8(ReduceArguments z) { reduce<double>(z); }
KERNEL void reduce_9(ReduceArguments z) { reduce<DeviceBf16>(z); }
