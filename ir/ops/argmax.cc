#include "base/cat.h"
#include "base/status.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> argmax_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  PARTITA_RETURN_IF_ERROR(check_dim(dim, use.rank()));
  Shape shape = use.shape(0);
  if (shape[dim] == 0)
    return absl::InvalidArgumentError(cat("expected elements along dimension ", dim, ", found ", to_string(shape)));
  if (use.attrs.i("keep")) {
    shape[dim] = 1;
  } else {
    shape.erase(shape.begin() + dim);
  }
  return one_output(DType::kI64, std::move(shape));
}

std::string argmax_formula(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  std::string in, out;
  for (int d = 0; d < use.rank(); ++d) {
    append(in, factor_name(d), d == dim ? "^ " : " ");
    if (d != dim) append(out, " ", factor_name(d));
    if (d == dim && use.attrs.i("keep")) out += " *";
  }
  return in + "->" + out;
}

void argmax_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  Around a(use.shape(0), use.attrs.i("dim"));
  bool last = use.attrs.i("last") != 0;
  for (int64_t o = 0; o < a.outer; ++o) {
    for (int64_t n = 0; n < a.inner; ++n) {
      int64_t first = o * a.size * a.inner + n, best = 0;
      for (int64_t k = 1; k < a.size; ++k) {
        int64_t challenger = first + k * a.inner, champion = first + best * a.inner;
        if (last ? !ranks_before(*in[0], champion, challenger, true) : ranks_before(*in[0], challenger, champion, true))
          best = k;
      }
      outputs[0].i[o * a.inner + n] = best;
    }
  }
}

}  // namespace

// Index (i64) of the greatest element along `dim`; the first of several, or with `last` the last. NaN counts as the
// greatest.
extern const OpDef kArgmax = {
    .name = "argmax",
    .attributes = "i dim, i keep, i last",
    .formula_of = argmax_formula,
    .infer = argmax_types,
    .flops_per_point = 1,
    .evaluate = argmax_evaluate,
    .kernel = true,
};

}  // namespace partita
