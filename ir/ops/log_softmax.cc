#include "ir/graph/builder.h"
#include "ir/ops/softmax.h"
#include "ir/ops/wide.h"

namespace partita {

// x - log(sum(exp(x))) along dimension `dim`.
extern const OpDef kLogSoftmax = {
    .name = "log_softmax",
    .attributes = "i dim",
    .formula_of = softmax_formula,
    .infer = softmax_types,
    .flops_per_point = 12,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId y = widen(b, use.outputs[0]), g = widen(b, use.gradients[0]);
      ValueId sum = b.reduce_sum(g, {use.attrs.i("dim")}, true);
      return {b.cast(b.sub(g, b.mul(b.emit("exp", {y}), sum)), use.types[0].dtype)};
    },
    .expand = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId x = widen(b, use.inputs[0]);
      int64_t dim = use.attrs.i("dim");
      ValueId centered = b.sub(x, b.reduce("reduce_max", x, {dim}, true));
      ValueId sum = b.reduce_sum(b.emit("exp", {centered}), {dim}, true);
      return {b.cast(b.sub(centered, b.emit("log", {sum})), use.types[0].dtype)};
    },
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
