// Normalizations.
#include <numeric>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

std::vector<int64_t> from(int first, int rank) {
  std::vector<int64_t> dims(static_cast<size_t>(std::max(0, rank - first)));
  std::iota(dims.begin(), dims.end(), first);
  return dims;
}

// Scale or bias in the shape of the normalized dimensions.
ValueId fitted(const Conversion& c, int k, const Shape& normalized, DType type) {
  auto shape = broadcast_shapes(c.shape(k), normalized);
  c.require(shape && *shape == normalized, cat("input ", k, " of shape ", to_string(c.shape(k)),
                                               " does not fit the normalized shape ", to_string(normalized)));
  ValueId v = c.in(k);
  return c.e.cast(c.e.broadcast_to(v, normalized), type);
}

struct Normalized {
  ValueId y, mean, rstd;
};

Normalized layer_norm_of(Conversion& c, ValueId x, int scale, int bias, double epsilon, int axis) {
  Emitter& e = c.e;
  Shape normalized = e.shape(x);
  normalized.erase(normalized.begin(), normalized.begin() + axis);
  std::vector<ValueId> in = {x, fitted(c, scale, normalized, e.dtype(x))};
  if (c.has(bias)) in.push_back(fitted(c, bias, normalized, e.dtype(x)));
  auto out = e.emit_all("layer_norm", in, {{"axis", int64_t{axis}}, {"epsilon", epsilon}});
  return {out[0], out[1], out[2]};
}

Normalized rms_norm_of(Conversion& c, ValueId x, int scale, double epsilon, int axis) {
  Emitter& e = c.e;
  Shape normalized = e.shape(x);
  normalized.erase(normalized.begin(), normalized.begin() + axis);
  auto out = e.emit_all("rms_norm", {x, fitted(c, scale, normalized, e.dtype(x))},
                        {{"axis", int64_t{axis}}, {"epsilon", epsilon}});
  return {out[0], kNoValue, out[1]};
}

void layer_normalization(Conversion& c) {
  Normalized n = layer_norm_of(c, c.in(0), 1, 2, c.f("epsilon", 1e-5), c.axis(c.i("axis", -1), c.rank(0)));
  DType stash = c.element(c.i("stash_type", 1));
  c.out(0, n.y);
  if (c.wants(1)) c.out(1, c.e.cast(n.mean, stash));
  if (c.wants(2)) c.out(2, c.e.cast(n.rstd, stash));
}

void rms_normalization(Conversion& c) {
  Normalized n = rms_norm_of(c, c.in(0), 1, c.f("epsilon", 1e-5), c.axis(c.i("axis", -1), c.rank(0)));
  c.out(0, n.y);
  c.out(1, n.rstd);
}

// x + skip (+ bias), normalized; the sum is output 3.
template <bool kSimplified>
void skip_layer_normalization(Conversion& c) {
  Emitter& e = c.e;
  int bias = kSimplified ? 3 : 4, last = c.rank(0) - 1;
  ValueId x = e.add(c.in(0), c.in(1));
  if (c.has(bias)) x = e.add(x, c.in(bias));
  double epsilon = c.f("epsilon", 1e-5);
  Normalized n = kSimplified ? rms_norm_of(c, x, 2, epsilon, last) : layer_norm_of(c, x, 2, 3, epsilon, last);
  c.out(0, n.y);
  if (c.wants(1)) c.out(1, n.mean);
  if (c.wants(2)) c.out(2, n.rstd);
  c.out(3, x);
}

ValueId per_channel(Emitter& e, ValueId v, int rank) {
  Shape s(static_cast<size_t>(rank), 1);
  s[1] = elements(e.shape(v));
  return e.reshape(v, s);
}

// running = running * momentum + batch * (1 - momentum), variance of the population: ONNX's letter, not PyTorch's.
// Statistics that several nodes update are updated by one after the other, as those of a module that is called as
// often.
ValueId running(Conversion& c, int k, ValueId batch, double momentum) {
  Emitter& e = c.e;
  DType t = c.dtype(k);
  ValueId next = e.add(e.scale(c.services.running(c.in(k)), momentum), e.scale(e.cast(batch, t), 1 - momentum));
  c.services.set_running(c.in(k), next);
  return next;
}

void batch_normalization(Conversion& c) {
  Emitter& e = c.e;
  double epsilon = c.f("epsilon", 1e-5), momentum = c.f("momentum", 0.9);
  c.require(c.i("spatial", 1) != 0, "spatial = 0 is not supported");
  c.require(c.rank(0) >= 2, "expected [n, c, …]");
  DType t = c.dtype(0), wide = dtype_size(c.dtype(3)) > dtype_size(t) ? c.dtype(3) : t;
  int64_t channels = c.shape(0)[1];
  for (int k = 1; k <= 4; ++k)
    c.require(c.shape(k) == Shape{channels},
              cat("input ", k, ": expected ", channels, " elements, found ", to_string(c.shape(k))));
  ValueId x = e.cast(c.in(0), wide), scale = e.cast(c.in(1), wide), bias = e.cast(c.in(2), wide);
  const bool exported = c.version >= 14 ? c.i("training_mode", 0) != 0 : c.outputs.size() > 1;
  const bool training = exported || c.services.batch_norm_training();
  c.services.never_train(c.in(3));
  c.services.never_train(c.in(4));
  if (!training && c.services.training()) {
    c.services.warn(
        "BatchNormalization nodes are in their form for inference, as most exporters write no other "
        "(torch.onnx.export(dynamo=True), jax2onnx, paddle2onnx): they use the stored statistics and do not update "
        "them; semantics: {batch_norm_training: true} in train.yaml normalizes by the batch");
  }
  if (!training || !c.services.training()) {
    int r = e.rank(x);
    ValueId mean = per_channel(e, e.cast(c.in(3), wide), r), variance = per_channel(e, e.cast(c.in(4), wide), r);
    ValueId factor = e.mul(per_channel(e, scale, r), e.emit("rsqrt", {e.shift(variance, epsilon)}));
    c.out(0, e.cast(e.add(e.mul(e.sub(x, mean), factor), per_channel(e, bias, r)), t));
    if (c.wants(1)) c.out(1, c.in(3));
    if (c.wants(2)) c.out(2, c.in(4));
    return;
  }
  auto out = e.emit_all("batch_norm", {x, scale, bias}, {{"epsilon", epsilon}});
  c.out(0, e.cast(out[0], t));
  c.out(1, running(c, 3, out[1], momentum));
  c.out(2, running(c, 4, out[2], momentum));
  c.out(3, out[1]);
  c.out(4, out[2]);
}

// (x - mean) / sqrt(variance + epsilon) over `dims`.
ValueId standardized(Emitter& e, ValueId x, const std::vector<int64_t>& dims, double epsilon) {
  ValueId d = e.sub(x, e.mean(x, dims, true));
  return e.mul(d, e.emit("rsqrt", {e.shift(e.mean(e.mul(d, d), dims, true), epsilon)}));
}

void instance_normalization(Conversion& c) {
  Emitter& e = c.e;
  int r = c.rank(0);
  c.require(r >= 2, "expected [n, c, …]");
  ValueId y = standardized(e, c.in(0), from(2, r), c.f("epsilon", 1e-5));
  c.out(e.add(e.mul(y, per_channel(e, c.in(1), r)), per_channel(e, c.in(2), r)));
}

void group_normalization(Conversion& c) {
  Emitter& e = c.e;
  Shape s = c.shape(0);
  int64_t groups = c.i("num_groups");
  int r = static_cast<int>(s.size());
  c.require(r >= 2 && groups > 0 && s[1] % groups == 0, "expected [n, c, …] with c a multiple of num_groups");
  DType t = c.dtype(0), wide = dtype_size(t) < 4 ? DType::kF32 : t;
  ValueId x = e.cast(c.in(0), wide);
  ValueId y = standardized(e, e.reshape(x, {s[0], groups, elements(s) / std::max<int64_t>(1, s[0] * groups)}), {2},
                           c.f("epsilon", 1e-5));
  auto weight = [&](int k) {
    ValueId v = e.cast(c.in(k), wide);
    if (c.version < 21) {  // one per group
      c.require(c.shape(k) == Shape{groups}, "expected one scale and one bias per group");
      v = e.reshape(e.broadcast_to(e.reshape(v, {groups, 1}), {groups, s[1] / groups}), {s[1]});
    }
    c.require(elements(e.shape(v)) == s[1], "expected one scale and one bias per channel");
    return per_channel(e, v, r);
  };
  c.out(e.cast(e.add(e.mul(e.reshape(y, s), weight(1)), weight(2)), t));
}

void lp_normalization(Conversion& c) {
  Emitter& e = c.e;
  int64_t axis = c.axis(c.i("axis", -1), c.rank(0)), p = c.i("p", 2);
  c.require(p == 1 || p == 2, "attribute p: expected 1 or 2");
  ValueId x = c.in(0);
  ValueId norm = p == 1 ? e.sum(e.emit("abs", {x}), {axis}, true) : e.emit("sqrt", {e.sum(e.mul(x, x), {axis}, true)});
  c.out(e.div(x, e.select(e.eq(norm, e.like(norm, 0)), e.like(norm, 1), norm)));
}

// Squares summed over a window of `size` channels.
void local_response_normalization(Conversion& c) {
  Emitter& e = c.e;
  Shape s = c.shape(0);
  c.require(s.size() >= 2, "expected [n, c, …]");
  int64_t size = c.i("size");
  c.require(size > 0 && size < 4096, "attribute size is out of range");
  double alpha = c.f("alpha", 1e-4), beta = c.f("beta", 0.75), bias = c.f("bias", 1);
  ValueId x = c.in(0), square = e.mul(x, x), total = kNoValue;
  std::vector<int64_t> low(s.size(), 0), high(s.size(), 0);
  low[1] = (size - 1) / 2, high[1] = size - 1 - low[1];
  ValueId padded = e.pad(square, e.like(x, 0), low, high);
  for (int64_t k = 0; k < size; ++k) {
    ValueId part = e.slice(padded, 1, k, k + s[1]);
    total = total == kNoValue ? part : e.add(total, part);
  }
  ValueId base = e.shift(e.scale(total, alpha / static_cast<double>(size)), bias);
  c.out(e.div(x, e.emit("pow", {base, e.like(base, beta)})));
}

constexpr std::string_view kMicrosoft = "com.microsoft";
constexpr ConvertEntry kTable[] = {
    {"LayerNormalization", 1, layer_normalization},
    {"RMSNormalization", 1, rms_normalization},
    {"SimplifiedLayerNormalization", 1, rms_normalization},
    {"LayerNormalization", 1, layer_normalization, kMicrosoft},
    {"SimplifiedLayerNormalization", 1, rms_normalization, kMicrosoft},
    {"SkipLayerNormalization", 1, skip_layer_normalization<false>, kMicrosoft},
    {"SkipSimplifiedLayerNormalization", 1, skip_layer_normalization<true>, kMicrosoft},
    {"BatchNormalization", 7, batch_normalization},
    {"InstanceNormalization", 6, instance_normalization},
    {"GroupNormalization", 18, group_normalization},
    {"LpNormalization", 1, lp_normalization},
    {"LRN", 1, local_response_normalization},
};

}  // namespace

std::span<const ConvertEntry> normalization_table() { return kTable; }

}  // namespace partita
