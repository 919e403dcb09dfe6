#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> select_types(const OpView& use) {
  if (use.dtype(0) != DType::kBool || use.dtype(1) != use.dtype(2)) {
    return absl::InvalidArgumentError(cat("expected a bool condition and two operands of one element type, found ",
                                          to_string(use.inputs[0]), ", ", to_string(use.inputs[1]), " and ",
                                          to_string(use.inputs[2])));
  }
  PARTITA_ASSIGN_OR_RETURN(Shape shape, broadcast_all(use));
  if (!checked_elements(shape))
    return absl::InvalidArgumentError(cat("a result of ", to_string(shape), " elements is too large"));
  return std::vector<TensorType>{{use.dtype(1), std::move(shape)}};
}

// A condition that is known takes one side.
ValueId select_simpler(const OpUse& use) {
  const Literal* condition = use.b.literal(use.inputs[0]);
  if (condition == nullptr || elements(condition->type.shape) != 1) return kNoValue;
  const ValueId taken = use.inputs[condition->bytes()[0] != std::byte{0} ? 1 : 2];
  const auto whole = select_types(use.view());
  return whole.ok() && use.b.type(taken) == whole->front() ? taken : kNoValue;
}

std::string select_formula(const OpView& use) { return elementwise_formula(use, " 11"); }

}  // namespace

// condition ? a : b. Jointly linear in a and b. The branch not taken passes no gradient, whatever it holds.
extern const OpDef kSelect = {
    .name = "select",
    .min_inputs = 3,
    .max_inputs = 3,
    .formula_of = select_formula,
    .infer = select_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId g = use.gradients[0], zero = b.scalar(use.types[1].dtype, 0);
      return {kNoValue, b.sum_to(b.select(use.inputs[0], g, zero), use.types[1].shape),
              b.sum_to(b.select(use.inputs[0], zero, g), use.types[2].shape)};
    },
    .simpler = select_simpler,
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars { return {s.select(x[0], x[1], x[2])}; },
};

}  // namespace partita
