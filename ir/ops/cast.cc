#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> cast_types(const OpView& use) {
  if (use.attrs.dtype("to") == DType::kInvalid)
    return absl::InvalidArgumentError("expected an element type to cast to");
  return std::vector<TensorType>{{use.attrs.dtype("to"), use.shape(0)}};
}

// Up to rounding, linear from numbers to floats.
std::string cast_formula(const OpView& use) {
  return elementwise_formula(use, is_float(use.attrs.dtype("to")) && use.dtype() != DType::kBool ? "~" : "");
}

}  // namespace

// To attribute `to`: float to integer truncates and saturates (NaN gives 0), integers wrap, anything to bool is != 0.
extern const OpDef kCast = {
    .name = "cast",
    .attributes = "dtype to",
    .formula_of = cast_formula,
    .infer = cast_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {is_float(use.types[0].dtype) ? use.b.cast(use.gradients[0], use.types[0].dtype) : kNoValue};
    },
    .simpler = [](const OpUse& use) { return use.types[0].dtype == use.attrs.dtype("to") ? use.inputs[0] : kNoValue; },
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      return {s.cast(x[0], use.attrs.dtype("to"))};
    },
    .casts = true,
    .precision = OperandPrecision::kAsIs,
};

}  // namespace partita
