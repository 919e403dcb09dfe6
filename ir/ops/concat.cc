#include <numeric>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> concat_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  PARTITA_RETURN_IF_ERROR(check_dim(dim, use.rank()));
  Shape shape = use.shape(0);
  for (size_t k = 1; k < use.inputs.size(); ++k) {
    Shape other = use.inputs[k].shape;
    bool fits = use.inputs[k].dtype == use.dtype() && other.size() == shape.size();
    if (fits) {
      shape[dim] += other[dim];
      other[dim] = shape[dim];
      fits = other == shape;
    }
    if (!fits) {
      return absl::InvalidArgumentError(cat("input ", k, ": cannot join ", to_string(use.inputs[k]), " to ",
                                            to_string(use.inputs[0]), " along dimension ", dim));
    }
    if (!checked_elements(shape)) break;  // one_output's fault; and the sum stays in range
  }
  return one_output(use.dtype(), std::move(shape));
}

// "~1 a m0^ c, ~1 a m1^ c -> a total=7^ c"; where all are of whole blocks, the place within a block stays as it is:
// "~1 a (m0^ b) c, ~1 a b c -> a (total^ b) c".
std::string concat_formula(const OpView& use) {
  int64_t dim = use.attrs.i("dim"), sum = 0, block = 0;
  bool none_empty = true;
  for (const TensorType& type : use.inputs) {
    block = std::gcd(block, type.shape[dim]);
    sum += type.shape[dim];
    none_empty = none_empty && type.shape[dim] > 0;
  }
  bool blocks = none_empty && block > 1 && use.inputs.size() > 1;
  std::string text, out, joined = factor_name(static_cast<int>(dim));
  for (size_t k = 0; k < use.inputs.size(); ++k) {
    int64_t size = use.inputs[k].shape[dim];
    std::string mine = !blocks         ? cat("m", k, "^")
                       : size == block ? cat(joined, "=", block)
                                       : cat("(m", k, "=", size / block, "^ ", joined, "=", block, ")");
    text += k ? ", ~1" : "~1";
    for (int d = 0; d < use.rank(); ++d) append(text, " ", d == dim ? mine : factor_name(d));
  }
  for (int d = 0; d < use.rank(); ++d) {
    std::string whole = blocks ? cat("(total=", sum / block, "^ ", joined, ")") : cat("total=", sum, "^");
    append(out, " ", d == dim ? whole : factor_name(d));
  }
  return text + " ->" + out;
}

std::vector<ValueId> concat_gradient(const OpUse& use) {
  Builder& b = use.b;
  int64_t dim = use.attrs.i("dim"), at = 0;
  std::vector<ValueId> gradients;
  for (const TensorType& type : use.types) {
    std::vector<int64_t> starts(type.shape.size(), 0), limits = type.shape, strides(type.shape.size(), 1);
    starts[dim] = at;
    limits[dim] = at += type.shape[dim];
    gradients.push_back(
        b.emit("slice", {use.gradients[0]}, {{"starts", starts}, {"limits", limits}, {"strides", strides}}));
  }
  return gradients;
}

void concat_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  int64_t dim = use.attrs.i("dim"), before = 0;
  Around out(outputs[0].type.shape, dim);
  for (const Tensor* x : in) {
    Around a(x->type.shape, dim);
    int64_t row = a.size * a.inner;
    for (int64_t o = 0; o < a.outer; ++o) {
      for (int64_t k = 0; k < row; ++k)
        copy_element(*x, o * row + k, outputs[0], (o * out.size + before) * out.inner + k);
    }
    before += a.size;
  }
}

}  // namespace

// The inputs one after the other along dimension `dim`. With `apart` the result is put together in memory by itself:
// what reads it is compiled as if one kernel had made it.
extern const OpDef kConcat = {
    .name = "concat",
    .max_inputs = -1,
    .attributes = "i dim, i apart?",
    .formula_of = concat_formula,
    .infer = concat_types,
    .gradient = concat_gradient,
    .evaluate = concat_evaluate,
    .moves = true,
};

}  // namespace partita
