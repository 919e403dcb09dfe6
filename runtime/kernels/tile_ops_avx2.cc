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
#pragma GCC target("avx2,fma")

namespace partita::runtime {
namespace {

constexpr int64_t kVectorBytes = 32;
constexpr int kRows = 6, kVectors = 2;
#include "runtime/kernels/tile_ops.inc"

}  // namespace

const TileOps<float> kTileOpsAvx2F32 = kOps<float>;
const TileOps<double> kTileOpsAvx2F64 = kOps<double>;

}  // namespace partita::runtime

#pragma GCC pop_options
