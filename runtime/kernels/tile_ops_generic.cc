#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/math/exp_polynomial.h"
#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/transpose.h"

namespace partita::runtime {
namespace {

constexpr int64_t kVectorBytes = 16;
constexpr int kRows = 4, kVectors = 2;
#include "runtime/kernels/tile_ops.inc"

}  // namespace

const TileOps<float> kTileOpsGenericF32 = kOps<float>;
const TileOps<double> kTileOpsGenericF64 = kOps<double>;

}  // namespace partita::runtime
