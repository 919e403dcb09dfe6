// Counter-based random numbers: word w of Philox-4x32-10 at (counter = index, high half = step) under a key made of the
// attributes `seed` and `instance`. `index` is the element's index in the global batch, given as a tensor (sums of
// iotas), so that a split program draws the numbers of the serial one.
#include <numbers>

#include "base/cat.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> random_types(const OpView& use) {
  if (use.dtype(0) != DType::kI64 || use.inputs[1] != TensorType{DType::kI64, {}}) {
    return absl::InvalidArgumentError(cat("expected an i64 index and an i64[] step, found ", to_string(use.inputs[0]),
                                          " and ", to_string(use.inputs[1])));
  }
  return std::vector<TensorType>{{DType::kF32, use.shape(0)}};
}

// The finalizer of SplitMix64 (Steele et al., OOPSLA 2014): unlike (seed, instance) pairs give unlike keys.
uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

int64_t random_key(const OpView& use) {
  uint64_t seed = static_cast<uint64_t>(use.attrs.i("seed")), instance = static_cast<uint64_t>(use.attrs.i("instance"));
  return static_cast<int64_t>(mixed(mixed(seed + 0x9E3779B97F4A7C15u) ^ (instance + 0x9E3779B97F4A7C15u)));
}

// 24 high bits of word `w` as a multiple of 2^-24 in [0, 1): exact in f32.
Scalar fraction(ScalarBuilder& s, const OpView& use, const Scalars& x, int w) {
  Scalar bits = s.binary(ScalarOp::kShr, s.philox(x[0], x[1], random_key(use), w), s.constant_i(DType::kU32, 8));
  return s.mul(s.cast(bits, DType::kF32), s.constant(DType::kF32, 0x1p-24));
}

}  // namespace

// (index i64 […], step i64 []) -> f32 […], uniform in [0, 1).
extern const OpDef kUniform = {
    .name = "uniform",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i seed, i instance",
    .formula_of = nonlinear_formula,
    .infer = random_types,
    .flops_per_point = 60,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars { return {fraction(s, use, x, 0)}; },
    .draws = true,
};

// (index i64 […], step i64 []) -> f32 […], normal with mean 0 and variance 1: Box-Muller of words 0 and 1.
extern const OpDef kNormal = {
    .name = "normal",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i seed, i instance",
    .formula_of = nonlinear_formula,
    .infer = random_types,
    .flops_per_point = 100,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      // (word + 1/2) / 2^32 lies in (0, 1], so the logarithm is finite.
      Scalar word = s.cast(s.philox(x[0], x[1], random_key(use), 0), DType::kF32);
      Scalar u = s.mul(s.add(word, s.like(word, 0.5)), s.like(word, 0x1p-32));
      Scalar radius = s.unary(ScalarOp::kSqrt, s.mul(s.like(u, -2), s.unary(ScalarOp::kLog, u)));
      Scalar angle = s.mul(s.like(u, 2 * std::numbers::pi), fraction(s, use, x, 1));
      return {s.mul(radius, s.unary(ScalarOp::kCos, angle))};
    },
    .draws = true,
};

}  // namespace partita
