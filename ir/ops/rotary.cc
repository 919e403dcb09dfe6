#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/ops/wide.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> rotary_types(const OpView& use) {
  const TensorType &x = use.inputs[0], &cos = use.inputs[1], &sin = use.inputs[2];
  if (!is_float(x.dtype) || x.rank() != 4)
    return absl::InvalidArgumentError(
        cat("expected a float tensor [batch, heads, positions, features], found ", to_string(x)));
  if (cos != sin || cos.rank() != 4 || (cos.dtype != x.dtype && cos.dtype != wide_type(x.dtype))) {
    return absl::InvalidArgumentError(cat("expected cos and sin of one type and rank 4 for ", to_string(x), ", found ",
                                          to_string(cos), " and ", to_string(sin)));
  }
  for (int d = 0; d < 3; ++d) {
    if (cos.shape[d] != 1 && cos.shape[d] != x.shape[d]) {
      return absl::InvalidArgumentError(cat("cos and sin ", to_string(cos), " do not broadcast along ", to_string(x),
                                            ": dimension ", d, " is neither 1 nor ", x.shape[d]));
    }
  }
  if (cos.shape[3] < 1 || cos.shape[3] > x.shape[3] / 2) {
    return absl::InvalidArgumentError(cat("cos and sin ", to_string(cos), " have ", cos.shape[3],
                                          " angles: expected 1 to ", x.shape[3] / 2, ", half of the features of ",
                                          to_string(x)));
  }
  return std::vector<TensorType>{x};
}

std::string rotary_formula(const OpView& use) {
  std::string table;
  for (int d = 0; d < 3; ++d)
    append(table, use.shape(1)[d] == 1 && use.shape(0)[d] != 1 ? std::string("*") : std::string(1, "bhs"[d]), " ");
  return cat("~ b h s d^, ", table, "r^, ", table, "r -> b h s d");
}

// The features of each angle's pair, [b,h,s,r/2] each, and those past the first r = 2 angles (kNoValue: none).
struct Pairs {
  ValueId first, second, rest = kNoValue;
};

ValueId features(Builder& b, ValueId x, int64_t start, int64_t limit, int64_t stride) {
  Shape limits = b.shape(x), starts(limits.size(), 0), strides(limits.size(), 1);
  if (start == 0 && limit == limits.back() && stride == 1) return x;
  starts.back() = start, limits.back() = limit, strides.back() = stride;
  return b.emit("slice", {x}, {{"starts", starts}, {"limits", limits}, {"strides", strides}});
}

Pairs take_pairs(const OpUse& use, ValueId x) {
  Builder& b = use.b;
  int64_t half = use.types[1].shape[3], d = use.types[0].shape[3];
  Pairs p;
  if (use.attrs.i("interleaved", 0) != 0) {
    p = {features(b, x, 0, 2 * half - 1, 2), features(b, x, 1, 2 * half, 2)};
  } else {
    p = {features(b, x, 0, half, 1), features(b, x, half, 2 * half, 1)};
  }
  if (2 * half < d) p.rest = features(b, x, 2 * half, d, 1);
  return p;
}

ValueId put_pairs(const OpUse& use, const Pairs& p) {
  Builder& b = use.b;
  std::vector<ValueId> parts;
  if (use.attrs.i("interleaved", 0) != 0) {
    Shape apart = b.shape(p.first), merged = apart;
    apart.push_back(1);
    merged.back() *= 2;
    parts = {b.reshape(b.emit("concat", {b.reshape(p.first, apart), b.reshape(p.second, apart)}, {{"dim", int64_t{4}}}),
                       merged)};
  } else {
    parts = {p.first, p.second};
  }
  if (p.rest != kNoValue) parts.push_back(p.rest);
  return parts.size() == 1 ? parts[0] : b.emit("concat", std::move(parts), {{"dim", int64_t{3}}});
}

std::vector<ValueId> rotary_expand(const OpUse& use) {
  Builder& b = use.b;
  ValueId cos = widen(b, use.inputs[1]), sin = widen(b, use.inputs[2]);
  Pairs x = take_pairs(use, widen(b, use.inputs[0])), y;
  y.first = b.sub(b.mul(x.first, cos), b.mul(x.second, sin));
  y.second = b.add(b.mul(x.second, cos), b.mul(x.first, sin));
  y.rest = x.rest;
  return {b.cast(put_pairs(use, y), use.types[0].dtype)};
}

// The opposite rotation; the tables' own gradients, for models that learn them, are dead code elsewhere.
std::vector<ValueId> rotary_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId dx = b.emit("rotary", {use.gradients[0], use.inputs[1], b.neg(use.inputs[2])}, use.attrs);
  Pairs x = take_pairs(use, widen(b, use.inputs[0])), g = take_pairs(use, widen(b, use.gradients[0]));
  auto table = [&](ValueId v) { return b.cast(b.sum_to(v, use.types[1].shape), use.types[1].dtype); };
  ValueId dcos = table(b.add(b.mul(g.first, x.first), b.mul(g.second, x.second)));
  ValueId dsin = table(b.sub(b.mul(g.second, x.first), b.mul(g.first, x.second)));
  return {dx, dcos, dsin};
}

}  // namespace

// Rotary position embedding (Su et al. 2021) of x [b,h,s,d] by angles whose cos and sin [.., .., s, r/2] broadcast
// along it: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) for the pairs of the first r features; the others stay.
// Pairs are (i, i + r/2), or (2i, 2i + 1) where interleaved = 1.
extern const OpDef kRotary = {
    .name = "rotary",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "i interleaved?",
    .formula_of = rotary_formula,
    .infer = rotary_types,
    .flops_per_point = 3,
    .gradient = rotary_gradient,
    .expand = rotary_expand,
};

}  // namespace partita
