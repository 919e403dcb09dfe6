#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> cumsum_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_dim(use.attrs.i("dim"), use.rank()));
  if (use.dtype() == DType::kBool) return absl::InvalidArgumentError("expected a float or integer type, found bool");
  return std::vector<TensorType>{use.inputs[0]};
}

std::string cumsum_formula(const OpView& use) {
  std::string in = "~", out;
  for (int d = 0; d < use.rank(); ++d) {
    append(in, " ", factor_name(d), d == use.attrs.i("dim") ? "^" : "");
    append(out, " ", factor_name(d));
  }
  return in + " ->" + out;
}

void cumsum_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  Around a(use.shape(0), use.attrs.i("dim"));
  bool exclusive = use.attrs.i("exclusive") != 0, reverse = use.attrs.i("reverse") != 0;
  Tensor sum = Tensor::zeros({use.dtype(), {}});
  for (int64_t o = 0; o < a.outer; ++o) {
    for (int64_t n = 0; n < a.inner; ++n) {
      sum.f.assign(sum.f.size(), 0);
      sum.i.assign(sum.i.size(), 0);
      for (int64_t k = 0; k < a.size; ++k) {
        int64_t at = (o * a.size + (reverse ? a.size - 1 - k : k)) * a.inner + n;
        if (exclusive) copy_element(sum, 0, outputs[0], at);
        scatter_element("add", *in[0], at, sum, 0);
        if (!exclusive) copy_element(sum, 0, outputs[0], at);
      }
    }
  }
}

}  // namespace

// Running sums along `dim`, from the end with `reverse`, without the element itself with `exclusive`.
extern const OpDef kCumsum = {
    .name = "cumsum",
    .attributes = "i dim, i exclusive, i reverse",
    .formula_of = cumsum_formula,
    .infer = cumsum_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Attrs back = use.attrs;
      back.set("reverse", int64_t{use.attrs.i("reverse") == 0});
      return {use.b.emit("cumsum", {use.gradients[0]}, std::move(back))};
    },
    .evaluate = cumsum_evaluate,
    .kernel = true,
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
