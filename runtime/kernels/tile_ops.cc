#include "runtime/kernels/tile_ops.h"

namespace partita::runtime {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
}

namespace {

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

}  // namespace

template <>
const TileOps<float>& tile_ops<float>() {
  return has_avx512() ? kTileOpsAvx512F32 : has_avx2() ? kTileOpsAvx2F32 : kTileOpsGenericF32;
}
template <>
const TileOps<double>& tile_ops<double>() {
  return has_avx512() ? kTileOpsAvx512F64 : has_avx2() ? kTileOpsAvx2F64 : kTileOpsGenericF64;
}

}  // namespace partita::runtime
