#include <bit>

#include "base/cat.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> accumulate_tree_types(const OpView& use) {
  if (use.inputs[0] != use.inputs[1] || !is_float(use.dtype()))
    return absl::InvalidArgumentError("expected a sum and a term of one float type");
  const int64_t terms = use.attrs.i("micro_batches");
  if (terms < 1 || !std::has_single_bit(static_cast<uint64_t>(terms)))
    return absl::InvalidArgumentError(cat("expected a power of two of micro-batches, found ", terms));
  return std::vector<TensorType>{use.inputs[0]};
}

void accumulate_tree_evaluate(const OpView&, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  for (size_t k = 0; k < outputs[0].f.size(); ++k) outputs[0].f[k] = in[0]->f[k] + in[1]->f[k];
}

}  // namespace

// As accumulate, for floats, in an order that is fixed: the terms of the step's micro-batches of one rank, a power of
// two, are the leaves of a balanced binary tree, (t0 + t1) + (t2 + t3). The sum is there with the last of them.
extern const OpDef kAccumulateTree = {
    .name = "accumulate_tree",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i micro_batches",
    .formula_of = sum_formula,
    .infer = accumulate_tree_types,
    .flops_per_point = 1,
    .evaluate = accumulate_tree_evaluate,
    .kernel = true,
    .sums_micro_batches = true,
};

}  // namespace partita
