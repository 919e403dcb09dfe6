// Tokens to the places of experts, and what the experts make of them back.
#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::Status check_places(const OpView& use, int64_t places) {
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[1]));
  if (use.rank(0) != 2 || use.shape(1) != Shape{places} || use.shape(2) != Shape{places} || use.dtype(2) != use.dtype())
    return absl::InvalidArgumentError(cat("expected rows of width d, and a token and a weight for each place, found ",
                                          to_string(use.inputs[0]), ", ", to_string(use.inputs[1]), " and ",
                                          to_string(use.inputs[2])));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> dispatch_types(const OpView& use) {
  const int64_t places = use.rank(1) == 1 ? use.shape(1)[0] : -1;
  PARTITA_RETURN_IF_ERROR(check_places(use, places));
  if (use.shape(0)[0] == 0 && places > 0) return absl::InvalidArgumentError("expected tokens, found none");
  return one_output(use.dtype(), {places, use.shape(0)[1]});
}

absl::StatusOr<std::vector<TensorType>> combine_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_places(use, use.rank(0) == 2 ? use.shape(0)[0] : -1));
  if (use.attrs.i("size") < 1) return absl::InvalidArgumentError(cat("expected tokens, found ", use.attrs.i("size")));
  return one_output(use.dtype(), {use.attrs.i("size"), use.shape(0)[1]});
}

// What a place's weight adds to: the product of its row with its token's, summed up in f32 where rows are narrower.
ValueId weight_gradient(Builder& b, ValueId of_place, ValueId of_token, ValueId token) {
  const DType type = b.dtype(of_place), wide = dtype_size(type) < 4 ? DType::kF32 : type;
  ValueId row = b.emit("gather", {of_token, token}, {{"dim", int64_t{0}}});
  return b.cast(b.reduce_sum(b.mul(b.cast(of_place, wide), b.cast(row, wide)), {1}, /*keep=*/false), type);
}

ValueId column(Builder& b, ValueId weight) { return b.reshape(weight, {b.shape(weight)[0], 1}); }

}  // namespace

// (x [tokens, d], token [places], weight [places]) -> [places, d]: the row of each place's token, times its weight. An
// index is taken as gather takes it.
extern const OpDef kDispatch = {
    .name = "dispatch",
    .min_inputs = 3,
    .max_inputs = 3,
    .formula = "~ s^ d, p, ~ p -> p d",
    .infer = dispatch_types,
    .flops = [](const OpView& use) -> double { return static_cast<double>(use.shape(1)[0] * use.shape(0)[1]); },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId g = use.gradients[0], token = use.inputs[1];
      return {use.b.emit("combine", {g, token, use.inputs[2]}, {{"size", use.types[0].shape[0]}}), kNoValue,
              weight_gradient(use.b, g, use.inputs[0], token)};
    },
    .expand = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId rows = use.b.emit("gather", {use.inputs[0], use.inputs[1]}, {{"dim", int64_t{0}}});
      return {use.b.mul(rows, column(use.b, use.inputs[2]))};
    },
    .dispatches = true,
    .precision = OperandPrecision::kNarrow,
    .wraps_indices = true,
};

// (y [places, d], token [places], weight [places]) -> [size, d]: each token's sum of its places' rows, times their
// weights. A split of the places leaves a partial sum.
extern const OpDef kCombine = {
    .name = "combine",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "i size",
    .formula_of = [](const OpView& use) -> std::string {
      return cat("~ p+ d, p, ~ p -> s=", use.attrs.i("size"), "^ d");
    },
    .infer = combine_types,
    .flops = [](const OpView& use) -> double { return static_cast<double>(2 * use.shape(0)[0] * use.shape(0)[1]); },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId g = use.gradients[0], token = use.inputs[1];
      return {use.b.emit("dispatch", {g, token, use.inputs[2]}), kNoValue,
              weight_gradient(use.b, use.inputs[0], g, token)};
    },
    .expand = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId rows = use.b.mul(use.inputs[0], column(use.b, use.inputs[2]));
      return {use.b.emit("gather_grad", {rows, use.inputs[1]}, {{"dim", int64_t{0}}, {"size", use.attrs.i("size")}})};
    },
    .precision = OperandPrecision::kNarrow,
    .wraps_indices = true,
};

}  // namespace partita
