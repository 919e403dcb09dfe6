#include <algorithm>
#include <numeric>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

struct Range {
  int64_t start, limit, stride;
  int64_t count() const { return start == limit ? 0 : (limit - start - 1) / stride + 1; }
  bool whole(int64_t size) const { return start == 0 && limit == size && stride == 1; }
};

Range range(const Attrs& attrs, size_t d) {
  return {attrs.ints("starts")[d], attrs.ints("limits")[d], attrs.ints("strides")[d]};
}

absl::StatusOr<std::vector<TensorType>> slice_types(const OpView& use) {
  size_t rank = use.shape(0).size();
  for (const char* name : {"starts", "limits", "strides"}) {
    if (use.attrs.ints(name).size() != rank) {
      return absl::InvalidArgumentError(
          cat("attribute '", name, "': expected ", rank, " entries, found ", use.attrs.ints(name).size()));
    }
  }
  Shape shape;
  for (size_t d = 0; d < rank; ++d) {
    Range r = range(use.attrs, d);
    if (r.start < 0 || r.limit < r.start || r.limit > use.shape(0)[d] || r.stride < 1) {
      return absl::InvalidArgumentError(cat("dimension ", d, ": cannot take ", r.start, " to ", r.limit,
                                            " in steps of ", r.stride, " from ", to_string(use.shape(0))));
    }
    shape.push_back(r.count());
  }
  return std::vector<TensorType>{{use.dtype(), std::move(shape)}};
}

// A range of whole blocks leaves the place within a block as it is: "~ (n0^ a) -> a", "~ (n0^ a) -> (o0^ a)".
std::string slice_formula(const OpView& use) {
  std::string in = "~", out;
  for (size_t d = 0; d < use.shape(0).size(); ++d) {
    std::string name = factor_name(static_cast<int>(d));
    int64_t size = use.shape(0)[d];
    Range r = range(use.attrs, d);
    int64_t block = r.stride == 1 && r.count() > 0 ? std::gcd(std::gcd(r.start, r.limit), size) : 1;
    if (r.whole(size)) {
      append(in, " ", name);
      append(out, " ", name);
    } else if (block > 1) {
      append(in, " (n", d, "=", size / block, "^ ", name, "=", block, ")");
      append(out, r.count() == block ? cat(" ", name) : cat(" (o", d, "=", r.count() / block, "^ ", name, ")"));
    } else {
      append(in, " ", name, "^");
      append(out, " o", d, "=", r.count(), "^");
    }
  }
  return in + " ->" + out;
}

// Puts the gradient back where it was taken: first spread to the strides (each element becomes `stride` wide), then
// padded to x's size.
std::vector<ValueId> slice_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId g = use.gradients[0], zero = b.scalar(use.types[0].dtype, 0);
  const Shape& full = use.types[0].shape;
  size_t rank = full.size();
  std::vector<int64_t> low(rank), high(rank);
  for (size_t d = 0; d < rank; ++d) {
    Range r = range(use.attrs, d);
    int64_t length = r.count();
    if (r.stride > 1 && length > 0) {
      Shape split = b.shape(g);
      split.insert(split.begin() + d + 1, 1);
      std::vector<int64_t> none(rank + 1, 0), gap(rank + 1, 0);
      gap[d + 1] = std::min(r.stride, full[d]) - 1;
      g = b.emit("pad", {b.reshape(g, split), zero}, {{"low", none}, {"high", gap}});
      Shape merged = b.shape(g);
      merged[d] *= merged[d + 1];
      merged.erase(merged.begin() + d + 1);
      g = b.reshape(g, merged);
      length = std::min(merged[d], full[d] - r.start);
      Shape limits = merged;
      limits[d] = length;
      if (length < merged[d]) {
        g = b.emit("slice", {g},
                   {{"starts", std::vector<int64_t>(rank, 0)},
                    {"limits", limits},
                    {"strides", std::vector<int64_t>(rank, 1)}});
      }
    }
    low[d] = length == 0 ? 0 : r.start;
    high[d] = full[d] - low[d] - length;
  }
  return {b.emit("pad", {g, zero}, {{"low", low}, {"high", high}})};
}

void slice_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  int64_t target = 0;
  for_each_index(outputs[0].type.shape, [&](const std::vector<int64_t>& index) {
    int64_t source = 0;
    for (size_t d = 0; d < index.size(); ++d)
      source = source * use.shape(0)[d] + use.attrs.ints("starts")[d] + index[d] * use.attrs.ints("strides")[d];
    copy_element(*in[0], source, outputs[0], target++);
  });
}

// Where blocks are split, all of the range shrinks alike; a range that is not of blocks has not been split.
Attrs slice_localize(const Attrs& attrs, std::span<const Shape>, std::span<const Shape> outputs) {
  std::vector<int64_t> starts = attrs.ints("starts"), limits = attrs.ints("limits");
  for (size_t d = 0; d < limits.size(); ++d) {
    int64_t count = limits[d] - starts[d], local = outputs[0][d];
    if (attrs.ints("strides")[d] != 1 || count == 0) continue;
    starts[d] = starts[d] / std::gcd(starts[d], count) * local / (count / std::gcd(starts[d], count));
    limits[d] = starts[d] + local;
  }
  Attrs local = attrs;
  local.set("starts", std::move(starts));
  local.set("limits", std::move(limits));
  return local;
}

}  // namespace

// Elements starts, starts + strides, … below limits of each dimension.
extern const OpDef kSlice = {
    .name = "slice",
    .attributes = "ints starts, ints limits, ints strides",
    .formula_of = slice_formula,
    .infer = slice_types,
    .gradient = slice_gradient,
    .evaluate = slice_evaluate,
    .localize = slice_localize,
    .moves = true,
};

}  // namespace partita
