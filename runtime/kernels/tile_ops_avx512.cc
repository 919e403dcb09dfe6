#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/math/exp_polynomial.h"
#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/transpose.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")

namespace partita::runtime {
namespace {

constexpr int64_t kVectorBytes = 64;
constexpr int kRows = 12, kVectors = 2;
#include "runtime/kernels/tile_ops.inc"

}  // namespace

const TileOps<float> kTileOpsAvx512F32 = kOps<float>;
const TileOps<double> kTileOpsAvx512F64 = kOps<double>;

}  // namespace partita::runtime

#pragma GCC pop_options
