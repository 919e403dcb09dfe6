#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> scatter_nd_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_scatter_mode(use.attrs.s("mode")));
  PARTITA_ASSIGN_OR_RETURN(Shape expected, gather_nd_shape(use.shape(0), use.inputs[1], 0));
  if (use.inputs[2] != TensorType{use.dtype(), expected}) {
    return absl::InvalidArgumentError(
        cat("expected updates ", to_string(TensorType{use.dtype(), expected}), ", found ", to_string(use.inputs[2])));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

// "~1 n0^ r1, q0^ k^, ~1 q0 r1 -> n0 r1"; linear in x and the updates together for "none" and "add".
std::string scatter_nd_formula(const OpView& use) {
  bool linear = use.attrs.s("mode") == "none" || use.attrs.s("mode") == "add";
  int64_t k = use.shape(1).back();
  std::string x = linear ? "~1" : "", indices, updates = linear ? " ~1" : "", out, rest;
  for (int d = 0; d + 1 < use.rank(1); ++d) {
    append(indices, " q", d, "^");
    append(updates, " q", d);
  }
  for (int d = 0; d < use.rank(0); ++d) {
    append(x, d < k ? " n" : " r", d, d < k ? "^" : "");
    append(out, d < k ? " n" : " r", d);
    if (d >= k) append(rest, " r", d);
  }
  return cat(x, ",", indices, " k^,", updates, rest, " ->", out);
}

}  // namespace

// (x, indices [many…, k], updates [many…, rest…]) -> x with the updates merged in at their coordinates by attribute
// `mode`, in order (so of two "none" updates to one place the later stands). "none" passes gradients as if no place
// were updated twice.
extern const OpDef kScatterNd = {
    .name = "scatter_nd",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "s mode",
    .formula_of = scatter_nd_formula,
    .infer = scatter_nd_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return scatter_gradient(
          use,
          [](const OpUse& u, ValueId from) {
            return u.b.emit("gather_nd", {from, u.inputs[1]}, {{"batch_dims", int64_t{0}}});
          },
          [](const OpUse& u, ValueId into, ValueId updates, const std::string& mode) {
            return u.b.emit("scatter_nd", {into, u.inputs[1], updates}, {{"mode", mode}});
          });
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
          outputs[0] = *in[0];
          int64_t k = 0;
          for_each_index(use.shape(2), [&](const std::vector<int64_t>& index) {
            scatter_element(use.attrs.s("mode"), *in[2], k++, outputs[0], nd_position(*in[1], use.shape(0), 0, index));
          });
        },
    .kernel = true,
};

}  // namespace partita
