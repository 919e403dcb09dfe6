#include <cmath>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/ops/wide.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> batch_norm_types(const OpView& use) {
  const TensorType& x = use.inputs[0];
  double epsilon = use.attrs.f("epsilon");
  if (!is_float(x.dtype) || x.rank() < 2)
    return absl::InvalidArgumentError(cat("expected a float tensor [n, channels, …], found ", to_string(x)));
  if (!std::isfinite(epsilon) || epsilon < 0)
    return absl::InvalidArgumentError(cat("expected an epsilon of at least 0, found ", epsilon));
  for (int k = 1; k < 3; ++k) {
    const TensorType& t = use.inputs[k];
    if (t.shape != Shape{x.shape[1]} || (t.dtype != x.dtype && t.dtype != wide_type(x.dtype))) {
      return absl::InvalidArgumentError(cat("expected ", k == 1 ? "scale " : "bias ",
                                            to_string(TensorType{x.dtype, {x.shape[1]}}), " for ", to_string(x),
                                            ", found ", to_string(t)));
    }
  }
  TensorType statistic{wide_type(x.dtype), {x.shape[1]}};
  if (use.attrs.has("groups")) {
    int64_t groups = use.attrs.i("groups");
    if (groups < 1 || x.shape[0] % groups != 0)
      return absl::InvalidArgumentError(cat("expected groups that divide ", x.shape[0], " samples, found ", groups));
    statistic.shape.insert(statistic.shape.begin(), groups);
  }
  return std::vector<TensorType>{x, statistic, statistic};
}

// "n^ c i0^ i1^, c, c -> n c i0 i1, c, c"; in groups "(g=4 n^) c i0^ i1^, c, c -> (g n) c i0 i1, g c, g c"
std::string batch_norm_formula(const OpView& use) {
  std::string spatial;
  for (int d = 2; d < use.rank(); ++d) append(spatial, " i", d - 2, "^");
  if (!use.attrs.has("groups")) return cat("n^ c", spatial, ", c, c -> n c", spatial, ", c, c");
  return cat("(g=", use.attrs.i("groups"), " n^) c", spatial, ", c, c -> (g n) c", spatial, ", g c, g c");
}

// x as it is normalized: [n, c, …], or [groups, n / groups, c, …].
class Samples {
 public:
  explicit Samples(const OpUse& use) : b_(use.b), shape_(use.types[0].shape), grouped_(use.attrs.has("groups")) {
    if (grouped_) {
      int64_t groups = use.attrs.i("groups");
      shape_[0] /= groups;
      shape_.insert(shape_.begin(), groups);
    }
    for (size_t d = grouped_ ? 1 : 0; d < shape_.size(); ++d) {
      if (d == channel()) continue;
      dims_.push_back(static_cast<int64_t>(d));
      count_ *= static_cast<double>(shape_[d]);
    }
  }

  // Dimensions and elements that one statistic is taken over.
  const std::vector<int64_t>& dims() const { return dims_; }
  double count() const { return count_; }
  const Shape& shape() const { return shape_; }

  ValueId view(ValueId x) const { return b_.reshape(x, shape_); }
  // [c] or [groups, c] -> a shape that broadcasts along the view.
  ValueId per_channel(ValueId v) const {
    v = widen(b_, v);
    Shape shape(shape_.size() - channel(), 1);
    shape[0] = shape_[channel()];
    if (b_.shape(v).size() == 2) shape.insert(shape.begin(), {shape_[0], 1});
    return b_.reshape(v, std::move(shape));
  }

 private:
  size_t channel() const { return grouped_ ? 2 : 1; }

  Builder& b_;
  Shape shape_;
  bool grouped_;
  std::vector<int64_t> dims_;
  double count_ = 1;
};

std::vector<ValueId> batch_norm_expand(const OpUse& use) {
  Builder& b = use.b;
  Samples samples(use);
  ValueId x = samples.view(widen(b, use.inputs[0]));
  ValueId mean = b.mean(x, samples.dims(), false), centered = b.sub(x, samples.per_channel(mean));
  ValueId variance = b.mean(b.mul(centered, centered), samples.dims(), false);
  ValueId rstd = b.emit("rsqrt", {b.add_scalar(variance, use.attrs.f("epsilon"))});
  ValueId factor = b.mul(rstd, widen(b, use.inputs[1]));
  ValueId y = b.add(b.mul(centered, samples.per_channel(factor)), samples.per_channel(use.inputs[2]));
  return {b.cast(b.reshape(y, use.types[0].shape), use.types[0].dtype), mean, variance};
}

// With n elements a channel, rstd = 1 / sqrt(variance + epsilon) and centered = x - mean:
//   dbias = sum(g), dscale = rstd sum(g centered), dx = scale rstd (g - dbias / n - centered rstd dscale / n),
// and a gradient of the mean is spread over the channel, one of the variance goes along 2 centered / n. In groups, dx
// takes each group's own sums, and dscale and dbias are summed over the groups.
std::vector<ValueId> batch_norm_gradient(const OpUse& use) {
  Builder& b = use.b;
  Samples samples(use);
  const double n = samples.count();
  auto over_groups = [&](ValueId v, int input) {
    if (use.attrs.has("groups")) v = b.reduce_sum(v, {0}, false);
    return b.cast(v, use.types[input].dtype);
  };
  ValueId centered = b.sub(samples.view(widen(b, use.inputs[0])), samples.per_channel(use.outputs[1]));
  ValueId dx = kNoValue, dscale = kNoValue, dbias = kNoValue;
  auto add = [&](ValueId term) { dx = dx == kNoValue ? term : b.add(dx, term); };
  if (use.gradients[0] != kNoValue) {
    ValueId g = samples.view(widen(b, use.gradients[0])),
            rstd = b.emit("rsqrt", {b.add_scalar(use.outputs[2], use.attrs.f("epsilon"))});
    ValueId sum = b.reduce_sum(g, samples.dims(), false),
            along = b.mul(rstd, b.reduce_sum(b.mul(g, centered), samples.dims(), false));
    ValueId slope = b.scale(b.mul(rstd, along), 1 / n);
    ValueId inner =
        b.sub(b.sub(g, samples.per_channel(b.scale(sum, 1 / n))), b.mul(centered, samples.per_channel(slope)));
    add(b.mul(inner, samples.per_channel(b.mul(rstd, widen(b, use.inputs[1])))));
    dscale = over_groups(along, 1);
    dbias = over_groups(sum, 2);
  }
  if (use.gradients[2] != kNoValue) add(b.mul(centered, samples.per_channel(b.scale(use.gradients[2], 2 / n))));
  if (use.gradients[1] != kNoValue)
    add(b.broadcast_to(samples.per_channel(b.scale(use.gradients[1], 1 / n)), samples.shape()));
  return {b.cast(b.reshape(dx, use.types[0].shape), use.types[0].dtype), dscale, dbias};
}

}  // namespace

// (x [n, c, …], scale [c], bias [c]) -> y = (x - mean) / sqrt(variance + epsilon) scale + bias, mean [c] and population
// variance [c] of this batch (Ioffe & Szegedy 2015): training mode. With `groups`, of each of so many runs of samples:
// y takes its own group's, and mean and variance are [groups, c].
extern const OpDef kBatchNorm = {
    .name = "batch_norm",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "f epsilon, i groups?",
    .formula_of = batch_norm_formula,
    .infer = batch_norm_types,
    .flops_per_point = 7,
    .gradient = batch_norm_gradient,
    .expand = batch_norm_expand,
    .split_form = batch_norm_expand,
    .localize =
        [](const Attrs& attrs, std::span<const Shape>, std::span<const Shape> out) {
          Attrs local = attrs;
          if (attrs.has("groups")) local.set("groups", out[1][0]);
          return local;
        },
    .precision = OperandPrecision::kAsIs,
};

}  // namespace partita
