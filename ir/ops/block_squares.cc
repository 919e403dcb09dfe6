#include "base/cat.h"
#include "base/status.h"
#include "ir/op/op_def.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> block_squares_types(const OpView& use) {
  if (use.rank() != 3 || !is_float(use.dtype()))
    return absl::InvalidArgumentError(cat("expected floats in three dimensions, found ", to_string(use.inputs[0])));
  return one_output(DType::kF64, {use.shape(0)[1]});
}

void block_squares_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const Shape& shape = use.shape(0);
  const std::vector<double>& x = in[0]->f;
  for (size_t k = 0; k < x.size(); ++k)
    outputs[0].f[k / static_cast<size_t>(shape[2]) % static_cast<size_t>(shape[1])] += x[k] * x[k];
}

}  // namespace

// The sums of squares of x [before, blocks, block], one for each block, in f64: each in an order that depends on
// `before` and `block` alone, so that it is the same however blocks are shared out.
extern const OpDef kBlockSquares = {
    .name = "block_squares",
    .formula = "a^ blocks c^ -> blocks",
    .infer = block_squares_types,
    .flops_per_point = 2,
    .evaluate = block_squares_evaluate,
    .kernel = true,
};

}  // namespace partita
