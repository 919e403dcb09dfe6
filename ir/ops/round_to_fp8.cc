#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/kinds.h"
#include "ir/graph/fp8_blocks.h"
#include "ir/ops/elementwise.h"
#include "ir/ops/wide.h"

namespace partita {
namespace {

// The largest number is 1.75 times 2 to the `greatest`.
struct Format {
  int fraction_bits, least, greatest;  // exponents of the least normal and of the largest number
};
constexpr Format kFormats[] = {{3, -6, 8}, {2, -14, 15}};

// Below this no block's scale falls: 2^-80 is far from bf16's least number and from any gradient that matters.
constexpr double kLeastTop = 0x1p-80;

bool is_blocked(const OpView& use, int64_t dim) {
  const auto& dims = use.attrs.ints("dims");
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

absl::StatusOr<std::vector<TensorType>> round_to_fp8_types(const OpView& use) {
  const int64_t block = use.attrs.i("block");
  const std::string& format = use.attrs.s("format");
  for (int64_t d : use.attrs.ints("dims")) {
    if (d < 0 || d >= use.rank() || block < 1 || use.shape(0)[d] % block != 0) {
      return absl::InvalidArgumentError(cat("expected a dimension of ", to_string(use.inputs[0]),
                                            " that is a multiple of a block of ", block, ", found dimension ", d));
    }
  }
  if (!is_float(use.dtype()) || use.dtype() == DType::kF16 || !parse_enum<Fp8Format>(format)) {
    return absl::InvalidArgumentError(
        cat("expected bf16, f32 or f64 and a format e4m3 or e5m2, found ", to_string(use.inputs[0]), " and ", format));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

// "a (b c=128^) -> a (b c)": blocks can be shared out, what is in one cannot.
std::string round_to_fp8_formula(const OpView& use) {
  std::string in, out;
  for (int d = 0; d < use.rank(); ++d) {
    const std::string name = factor_name(d), inside = factor_name(use.rank() + d);
    if (is_blocked(use, d)) {
      append(in, "(", name, " ", inside, "=", use.attrs.i("block"), "^) ");
      append(out, " (", name, " ", inside, ")");
    } else {
      append(in, name, " ");
      append(out, " ", name);
    }
  }
  return in + "->" + out;
}

// Numbers next to |x| are a step apart: as many to a power of two as the fraction has, and no finer than the block's
// least normal number. x is a whole number of steps within 2^24, so that neither division nor product rounds.
std::vector<ValueId> round_to_fp8_expand(const OpUse& use) {
  Builder& b = use.b;
  const Format f = kFormats[static_cast<size_t>(*parse_enum<Fp8Format>(use.attrs.s("format")))];
  const Shape& whole = use.types[0].shape;
  const BlockedShape blocks = in_blocks(whole, use.attrs.ints("dims"), use.attrs.i("block"));
  const ValueId x = widen(b, b.reshape(use.inputs[0], blocks.shape)), size = b.emit("abs", {x});
  const ValueId most = b.reduce("reduce_max", size, blocks.dims, true);
  const ValueId power = b.emit("power_of_two", {most});
  const ValueId fits = b.emit("le", {most, b.scale(power, 1.75)});
  const ValueId top = b.emit("max", {b.select(fits, power, b.scale(power, 2)), b.scalar(b.dtype(x), kLeastTop)});
  const ValueId least = b.scale(top, std::ldexp(1.0, f.least - f.greatest));
  const ValueId step =
      b.scale(b.emit("max", {b.emit("power_of_two", {size}), least}), std::ldexp(1.0, -f.fraction_bits));
  const ValueId rounded = b.mul(b.emit("round", {b.div(x, step)}), step);
  return {b.reshape(b.cast(rounded, use.types[0].dtype), whole)};
}

}  // namespace

// The nearest numbers that a block of fp8 with a scale can be, halves to even, in the type that x has. A block has
// `block` elements along each of `dims`; its scale is the least power of two by which its largest number fits into
// the format ("e4m3": 448; "e5m2": 57344), so that results are numbers of bf16 too. NaN or infinity makes a block NaN,
// and so does a scale beyond f32. Blocks of 128, and of 128 x 128 for weights, are those of DeepSeek-V3 (2024), blocks
// of 32 those of MXFP8 (OCP, 2023).
extern const OpDef kRoundToFp8 = {
    .name = "round_to_fp8",
    .attributes = "ints dims, i block, s format",
    .formula_of = round_to_fp8_formula,
    .infer = round_to_fp8_types,
    .flops_per_point = 8,
    .expand = round_to_fp8_expand,
    .precision = OperandPrecision::kAsIs,
};

}  // namespace partita
