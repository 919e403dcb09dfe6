#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> transpose_types(const OpView& use) {
  const auto& permutation = use.attrs.ints("permutation");
  if (static_cast<int>(permutation.size()) != use.rank()) {
    return absl::InvalidArgumentError(
        cat("attribute 'permutation': expected ", use.rank(), " entries, found ", permutation.size()));
  }
  PARTITA_RETURN_IF_ERROR(check_dims(permutation, use.rank(), "permutation"));
  Shape shape;
  for (int64_t d : permutation) shape.push_back(use.shape(0)[d]);
  return std::vector<TensorType>{{use.dtype(), std::move(shape)}};
}

std::string transpose_formula(const OpView& use) {
  std::string in = "~", out;
  for (int d = 0; d < use.rank(); ++d) append(in, " ", factor_name(d));
  for (int64_t d : use.attrs.ints("permutation")) append(out, " ", factor_name(static_cast<int>(d)));
  return in + " ->" + out;
}

std::vector<ValueId> transpose_gradient(const OpUse& use) {
  const auto& permutation = use.attrs.ints("permutation");
  std::vector<int64_t> inverse(permutation.size());
  for (size_t k = 0; k < permutation.size(); ++k) inverse[permutation[k]] = static_cast<int64_t>(k);
  return {use.b.transpose(use.gradients[0], std::move(inverse))};
}

void transpose_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const auto& permutation = use.attrs.ints("permutation");
  std::vector<int64_t> strides = row_major_strides(use.shape(0));
  int64_t target = 0;
  for_each_index(outputs[0].type.shape, [&](const std::vector<int64_t>& index) {
    int64_t source = 0;
    for (size_t k = 0; k < index.size(); ++k) source += index[k] * strides[permutation[k]];
    copy_element(*in[0], source, outputs[0], target++);
  });
}

// A transposition of a transposition is one, and the identity is none. Parts of a gradient are transposed one by one,
// and written where they belong in the whole. (Of the forward part, recognisers look for what has been written there.)
ValueId transpose_simpler(const OpUse& use) {
  const Node* before = use.b.graph().producer(use.inputs[0]);
  std::vector<int64_t> permutation = use.attrs.ints("permutation");
  if (before != nullptr && before->op->name == "concat" && before->segment == Segment::kBackward) {
    const auto dim = std::find(permutation.begin(), permutation.end(), before->attrs.i("dim")) - permutation.begin();
    std::vector<ValueId> parts = before->inputs;
    for (ValueId& part : parts) part = use.b.transpose(part, permutation);
    return use.b.emit("concat", std::move(parts), {{"dim", int64_t{dim}}});
  }
  ValueId from = use.inputs[0];
  if (before != nullptr && before->op->name == "transpose") {
    const std::vector<int64_t>& first = before->attrs.ints("permutation");
    for (int64_t& d : permutation) d = first[d];
    from = before->inputs[0];
  }
  bool identity = true;
  for (size_t k = 0; k < permutation.size(); ++k) identity &= permutation[k] == static_cast<int64_t>(k);
  return identity || from != use.inputs[0] ? use.b.transpose(from, std::move(permutation)) : kNoValue;
}

}  // namespace

// Dimension k of the result is dimension permutation[k] of x.
extern const OpDef kTranspose = {
    .name = "transpose",
    .attributes = "ints permutation",
    .formula_of = transpose_formula,
    .infer = transpose_types,
    .gradient = transpose_gradient,
    .simpler = transpose_simpler,
    .evaluate = transpose_evaluate,
    .moves = true,
};

}  // namespace partita
