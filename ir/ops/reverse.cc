#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> reverse_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_dims(use.attrs.ints("dims"), use.rank()));
  return std::vector<TensorType>{use.inputs[0]};
}

std::string reverse_formula(const OpView& use) {
  std::vector<bool> reversed = dim_flags(use.attrs.ints("dims"), use.rank());
  std::string in = "~", out;
  for (int d = 0; d < use.rank(); ++d) {
    append(in, " ", factor_name(d), reversed[d] ? "^" : "");
    append(out, " ", factor_name(d));
  }
  return in + " ->" + out;
}

void reverse_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  std::vector<bool> reversed = dim_flags(use.attrs.ints("dims"), use.rank());
  const Shape& shape = use.shape(0);
  int64_t target = 0;
  for_each_index(shape, [&](const std::vector<int64_t>& index) {
    int64_t source = 0;
    for (size_t d = 0; d < shape.size(); ++d)
      source = source * shape[d] + (reversed[d] ? shape[d] - 1 - index[d] : index[d]);
    copy_element(*in[0], source, outputs[0], target++);
  });
}

}  // namespace

// Runs each dimension in `dims` backwards.
extern const OpDef kReverse = {
    .name = "reverse",
    .attributes = "ints dims",
    .formula_of = reverse_formula,
    .infer = reverse_types,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("reverse", {use.gradients[0]}, use.attrs)};
    },
    .evaluate = reverse_evaluate,
    .moves = true,
};

}  // namespace partita
