#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> topk_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim"), k = use.attrs.i("k");
  PARTITA_RETURN_IF_ERROR(check_dim(dim, use.rank()));
  Shape shape = use.shape(0);
  if (k < 0 || k > shape[dim])
    return absl::InvalidArgumentError(cat("attribute 'k': expected 0 to ", shape[dim], ", found ", k));
  shape[dim] = k;
  return std::vector<TensorType>{{use.dtype(), shape}, {DType::kI64, shape}};
}

// "a n^ c -> a k=2^ c, a k c"
std::string topk_formula(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  std::string in, values, indices;
  for (int d = 0; d < use.rank(); ++d) {
    append(in, factor_name(d), d == dim ? "^ " : " ");
    append(values, " ", d == dim ? cat("top=", use.attrs.i("k"), "^") : factor_name(d));
    append(indices, " ", d == dim ? "top" : factor_name(d));
  }
  return in + "->" + values + "," + indices;
}

void topk_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  Around a(use.shape(0), use.attrs.i("dim"));
  int64_t count = use.attrs.i("k");
  bool largest = use.attrs.i("largest") != 0;
  std::vector<int64_t> order(a.size);
  for (int64_t o = 0; o < a.outer; ++o) {
    for (int64_t n = 0; n < a.inner; ++n) {
      auto at = [&](int64_t k) { return (o * a.size + k) * a.inner + n; };
      for (int64_t k = 0; k < a.size; ++k) order[k] = k;
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t x, int64_t y) { return ranks_before(*in[0], at(x), at(y), largest); });
      for (int64_t k = 0; k < count; ++k) {
        int64_t target = (o * count + k) * a.inner + n;
        copy_element(*in[0], at(order[k]), outputs[0], target);
        outputs[1].i[target] = order[k];
      }
    }
  }
}

}  // namespace

// The k greatest (or least) elements along `dim` in order, and their indices (i64); of equal ones the lower index
// first. NaN counts as the greatest.
extern const OpDef kTopk = {
    .name = "topk",
    .attributes = "i k, i dim, i largest",
    .formula_of = topk_formula,
    .infer = topk_types,
    .flops_per_point = 4,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      if (use.gradients[0] == kNoValue) return {kNoValue};
      int64_t dim = use.attrs.i("dim");
      return {use.b.emit("take_along_grad", {use.gradients[0], use.outputs[1]},
                         {{"dim", dim}, {"size", use.types[0].shape[dim]}})};
    },
    .evaluate = topk_evaluate,
    .kernel = true,
};

}  // namespace partita
