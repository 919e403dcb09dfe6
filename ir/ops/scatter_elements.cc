#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> scatter_elements_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  PARTITA_RETURN_IF_ERROR(check_dim(dim, use.rank()));
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[1]));
  PARTITA_RETURN_IF_ERROR(check_scatter_mode(use.attrs.s("mode")));
  bool fits = use.rank(1) == use.rank(0) && use.inputs[2] == TensorType{use.dtype(), use.shape(1)};
  for (int d = 0; fits && d < use.rank(); ++d)
    fits = d == dim ? use.shape(0)[d] > 0 || elements(use.shape(1)) == 0 : use.shape(1)[d] <= use.shape(0)[d];
  if (!fits) {
    return absl::InvalidArgumentError(
        cat("expected indices and updates of one shape, of x's rank and nowhere larger but along dimension ", dim,
            ", found ", to_string(use.inputs[0]), ", ", to_string(use.inputs[1]), " and ", to_string(use.inputs[2])));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

// "~1 a n1^ c, a q1^ c, ~1 a q1 c -> a n1 c"; a dimension where x is larger than the indices is whole on both sides.
std::string scatter_elements_formula(const OpView& use) {
  bool linear = use.attrs.s("mode") == "none" || use.attrs.s("mode") == "add";
  std::string x = linear ? "~1" : "", indices, updates = linear ? " ~1" : "", out;
  for (int d = 0; d < use.rank(); ++d) {
    bool whole = d == use.attrs.i("dim") || use.shape(0)[d] != use.shape(1)[d];
    std::string name = factor_name(d), n = cat("n", d), q = cat("q", d);
    append(x, " ", whole ? n + "^" : name);
    append(indices, " ", whole ? q + "^" : name);
    append(updates, " ", whole ? q : name);
    append(out, " ", whole ? n : name);
  }
  return cat(x, ",", indices, ",", updates, " ->", out);
}

void scatter_elements_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  int64_t dim = use.attrs.i("dim"), k = 0;
  const Shape& shape = use.shape(0);
  outputs[0] = *in[0];
  for_each_index(use.shape(1), [&](const std::vector<int64_t>& index) {
    int64_t at = 0;
    for (int d = 0; d < use.rank(); ++d)
      at = at * shape[d] + (d == dim ? clamped_index(in[1]->i[k], shape[d]) : index[d]);
    scatter_element(use.attrs.s("mode"), *in[2], k++, outputs[0], at);
  });
}

}  // namespace

// (x, indices, updates of the indices' shape): x with x[…, indices[…, k, …], …] merged with updates[…, k, …] along
// `dim` by attribute `mode`, in order. "none" passes gradients as if no place were updated twice.
extern const OpDef kScatterElements = {
    .name = "scatter_elements",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "i dim, s mode",
    .formula_of = scatter_elements_formula,
    .infer = scatter_elements_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return scatter_gradient(
          use,
          [](const OpUse& u, ValueId from) {
            return u.b.emit("take_along", {from, u.inputs[1]}, {{"dim", u.attrs.i("dim")}});
          },
          [](const OpUse& u, ValueId into, ValueId updates, const std::string& mode) {
            return u.b.emit("scatter_elements", {into, u.inputs[1], updates},
                            {{"dim", u.attrs.i("dim")}, {"mode", mode}});
          });
    },
    .evaluate = scatter_elements_evaluate,
    .kernel = true,
};

}  // namespace partita
