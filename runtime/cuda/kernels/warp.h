// What the threads of a warp do together, as one instruction each: shuffles, loads of matrices, products on the tensor
// cores; and copies into shared memory that go on beside them. A test has host bodies of the same names.
#pragma once

#include "runtime/cuda/kernels/element.h"

#ifdef __CUDACC__

// The value of another lane of the warp: lane `from`, or the own one with bits of `mask` flipped.
__device__ inline float shuffle(float value, int from) { return __shfl_sync(0xffffffffu, value, from); }
__device__ inline float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Four 8 x 8 matrices of 16-bit elements in shared memory; lane l says where row l % 8 of matrix l / 8 begins (16
// bytes, aligned). Register m gets elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1) of matrix m, or those of its
// transpose.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8] with sums in f32, in the layouts of PTX's m16n8k16. With g = lane / 4, k = 2 (lane
// % 4): a holds the pairs (g, k), (g + 8, k), (g, k + 8), (g + 8, k + 8) along a row; b those at (k, g), (k + 8, g)
// along a column; c the elements (g, k), (g, k + 1), (g + 8, k), (g + 8, k + 1).
__device__ inline void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, DeviceBf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, DeviceF16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two elements as one register, `low` first in memory.
__device__ inline uint32_t pack(float low, float high, DeviceBf16) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ inline uint32_t pack(float low, float high, DeviceF16) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Copies 16 bytes into shared memory, or zeros where they do not exist; both addresses aligned to 16. A thread's copies
// since its last commit_copies() are a group; wait_copies<n>() returns when all its groups but the last n have arrived.
// Other threads see them after a barrier.
__device__ inline void copy_async16(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroups>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// The block's shared memory of the size that the launch names.
__device__ inline char* launch_shared() {
  extern __shared__ uint4 partita_launch_shared[];
  return reinterpret_cast<char*>(partita_launch_shared);
}

#endif
