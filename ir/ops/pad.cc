#include <numeric>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> pad_types(const OpView& use) {
  const auto &low = use.attrs.ints("low"), &high = use.attrs.ints("high");
  size_t rank = use.shape(0).size();
  if (use.inputs[1] != TensorType{use.dtype(), {}}) {
    return absl::InvalidArgumentError(
        cat("expected a scalar ", dtype_name(use.dtype()), " to pad with, found ", to_string(use.inputs[1])));
  }
  if (low.size() != rank || high.size() != rank) {
    return absl::InvalidArgumentError(
        cat("attributes 'low' and 'high': expected ", rank, " entries, found ", low.size(), " and ", high.size()));
  }
  constexpr int64_t kLimit = int64_t{1} << 59;
  Shape shape = use.shape(0);
  for (size_t d = 0; d < rank; ++d) {
    if (low[d] < 0 || high[d] < 0 || low[d] > kLimit || high[d] > kLimit) {
      return absl::InvalidArgumentError(cat("dimension ", d, ": cannot pad by ", low[d], " and ", high[d]));
    }
    shape[d] += low[d] + high[d];
  }
  return one_output(use.dtype(), std::move(shape));
}

// Padding by whole blocks leaves the place within a block as it is: "~1 a, ~1 . -> (o0^ a)".
std::string pad_formula(const OpView& use) {
  const auto &low = use.attrs.ints("low"), &high = use.attrs.ints("high");
  std::string in = "~1", out;
  for (size_t d = 0; d < low.size(); ++d) {
    std::string name = factor_name(static_cast<int>(d));
    int64_t size = use.shape(0)[d], block = size > 0 ? std::gcd(std::gcd(low[d], high[d]), size) : 1;
    int64_t padded = low[d] + size + high[d];
    if (low[d] + high[d] == 0) {
      append(in, " ", name);
      append(out, " ", name);
    } else if (block > 1) {
      append(in, size == block ? cat(" ", name) : cat(" (n", d, "=", size / block, "^ ", name, "=", block, ")"));
      append(out, " (o", d, "=", padded / block, "^ ", name, ")");
    } else {
      append(in, " ", name, "^");
      append(out, " o", d, "=", padded, "^");
    }
  }
  return in + ", ~1 ->" + out;
}

// Where blocks are split, the padding shrinks as they do.
Attrs pad_localize(const Attrs& attrs, std::span<const Shape> inputs, std::span<const Shape> outputs) {
  std::vector<int64_t> low = attrs.ints("low"), high = attrs.ints("high");
  for (size_t d = 0; d < low.size(); ++d) {
    int64_t local = outputs[0][d] - inputs[0][d], whole = low[d] + high[d];
    if (whole == 0 || local == whole) continue;
    low[d] /= whole / local;
    high[d] = local - low[d];
  }
  Attrs changed = attrs;
  changed.set("low", std::move(low));
  changed.set("high", std::move(high));
  return changed;
}

// x takes the middle of the gradient, a value that is not constant the sum of the rest.
std::vector<ValueId> pad_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId g = use.gradients[0];
  std::vector<int64_t> limits = use.attrs.ints("low"), dims;
  for (size_t d = 0; d < limits.size(); ++d) {
    limits[d] += use.types[0].shape[d];
    dims.push_back(static_cast<int64_t>(d));
  }
  ValueId dx = b.emit(
      "slice", {g},
      {{"starts", use.attrs.ints("low")}, {"limits", limits}, {"strides", std::vector<int64_t>(limits.size(), 1)}});
  if (b.literal(use.inputs[1])) return {dx, kNoValue};
  ValueId rim = b.emit("pad", {b.full(b.dtype(g), use.types[0].shape, 0), b.scalar(b.dtype(g), 1)}, use.attrs);
  return {dx, b.reduce_sum(b.mul(g, rim), std::move(dims), false)};
}

void pad_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const auto& low = use.attrs.ints("low");
  const Shape& shape = use.shape(0);
  int64_t target = 0;
  for_each_index(outputs[0].type.shape, [&](const std::vector<int64_t>& index) {
    int64_t source = 0;
    bool inside = true;
    for (size_t d = 0; d < index.size(); ++d) {
      int64_t at = index[d] - low[d];
      inside &= at >= 0 && at < shape[d];
      source = source * shape[d] + at;
    }
    copy_element(inside ? *in[0] : *in[1], inside ? source : 0, outputs[0], target++);
  });
}

}  // namespace

// (x, value scalar): `low` elements of value before and `high` after each dimension.
extern const OpDef kPad = {
    .name = "pad",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "ints low, ints high",
    .formula_of = pad_formula,
    .infer = pad_types,
    .gradient = pad_gradient,
    .evaluate = pad_evaluate,
    .localize = pad_localize,
};

}  // namespace partita
