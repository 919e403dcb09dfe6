#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> float_to_bool(const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<TensorType> types, same_float_type(use));
  types[0].dtype = DType::kBool;
  return types;
}

}  // namespace

// Whether x is not a number.
extern const OpDef kIsNan = {
    .name = "is_nan",
    .formula_of = nonlinear_formula,
    .infer = float_to_bool,
    .flops_per_point = 1,
    .scalar = predicate_body<ScalarOp::kIsNan>,
};

// Whether x is plus or minus infinity.
extern const OpDef kIsInf = {
    .name = "is_inf",
    .formula_of = nonlinear_formula,
    .infer = float_to_bool,
    .flops_per_point = 1,
    .scalar = predicate_body<ScalarOp::kIsInf>,
};

}  // namespace partita
