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

// From a wider type back to what it was. (What is computed in 16 bits may be wider still within a kernel, so that its
// second cast says something.)
ValueId cast_simpler(const OpUse& use) {
  const DType to = use.attrs.dtype("to");
  if (use.types[0].dtype == to) return use.inputs[0];
  const Graph& graph = use.b.graph();
  const Node* before = graph.producer(use.inputs[0]);
  if (before == nullptr || !before->op->casts || !widens(to, use.types[0].dtype)) return kNoValue;
  const ValueId from = before->inputs[0];
  const Node* made = graph.producer(from);
  return use.b.dtype(from) == to && made != nullptr && made->op->scalar == nullptr ? from : kNoValue;
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
    .simpler = cast_simpler,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      return {s.cast(x[0], use.attrs.dtype("to"))};
    },
    .casts = true,
    .precision = OperandPrecision::kAsIs,
};

}  // namespace partita
