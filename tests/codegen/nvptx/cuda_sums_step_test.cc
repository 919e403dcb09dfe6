// Sums in a fixed order as steps of the CUDA module's device.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include "base/cat.h"
#include "ir/graph/evaluate.h"
#include "ir/op/op_def.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

runtime::Operand operand(const TensorType& type) { return {.dtype = type.dtype, .shape = type.shape}; }

// Blocks of several pieces, the last of which are not whole, and of parts of a piece.
TEST(CudaBlockSquares_AnyShape, MatchesReference) {
  for (const Shape& shape : std::vector<Shape>{{1, 1, 1}, {3, 4, 100}, {2, 2, 20000}, {1, 8, 0}}) {
    for (DType t : {DType::kF32, DType::kBF16, DType::kF64}) {
      const TensorType x{t, shape}, y{DType::kF64, {shape[1]}};
      const Tensor data = rounded(random_tensor(x, 1));
      const Tensor expected = evaluate_op(*find_op("block_squares"), {}, std::vector<const Tensor*>{&data})[0];
      runtime::Step step{.kind = runtime::StepKind::kLibrary, .name = "block_squares"};
      step.operands = {operand(x), operand(y)};
      step.inputs = 1;
      const Tensor found = run_step_on_cuda(step, {data}, Tensor::zeros(y))[0];
      for (size_t k = 0; k < expected.f.size(); ++k)
        ASSERT_NEAR(found.f[k], expected.f[k], 1e-12 * expected.f[k]) << to_string(shape) << dtype_name(t) << k;
    }
  }
}

}  // namespace
}  // namespace partita
#endif
