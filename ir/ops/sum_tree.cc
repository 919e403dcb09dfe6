#include <bit>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/op/op_def.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> sum_tree_types(const OpView& use) {
  if (use.rank() != 1 || !is_float(use.dtype()) || !std::has_single_bit(static_cast<uint64_t>(use.shape(0)[0])))
    return absl::InvalidArgumentError(
        cat("expected a vector of floats, as long as a power of two, found ", to_string(use.inputs[0])));
  return one_output(use.dtype(), {});
}

// Neighbours are added up, two and two.
std::vector<ValueId> sum_tree_pairs(const OpUse& use) {
  ValueId x = use.inputs[0];
  for (int64_t n = use.types[0].shape[0]; n > 1; n /= 2) x = use.b.reduce_sum(use.b.reshape(x, {n / 2, 2}), {1}, false);
  return {use.b.reshape(x, {})};
}

}  // namespace

// The sum of a vector as a balanced binary tree over its indices, (x0 + x1) + (x2 + x3): in one order wherever it is
// computed, for nothing splits it.
extern const OpDef kSumTree = {
    .name = "sum_tree",
    .formula = "a^ ->",
    .infer = sum_tree_types,
    .flops_per_point = 1,
    .expand = sum_tree_pairs,
};

}  // namespace partita
