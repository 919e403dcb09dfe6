#include "ir/ops/attention.h"

#include <cmath>
#include <limits>

#include "base/cat.h"
#include "base/math/masked_score.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/wide.h"

namespace partita {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorType optional_type(const OpView& use, size_t k) { return k < use.inputs.size() ? use.inputs[k] : TensorType{}; }

}  // namespace

absl::StatusOr<AttentionSizes> attention_sizes(const OpView& use, const TensorType& q, const TensorType& k,
                                               const TensorType& v, const TensorType& mask) {
  auto found = [&] { return cat("found q ", to_string(q), ", k ", to_string(k), ", v ", to_string(v)); };
  if (!is_float(q.dtype) || k.dtype != q.dtype || v.dtype != q.dtype || q.rank() != 4 || k.rank() != 4 ||
      v.rank() != 4) {
    return absl::InvalidArgumentError(
        cat("expected q, k and v of one float type and rank 4 [batch, heads, positions, features], ", found()));
  }
  AttentionSizes z{q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
  if (k.shape != Shape{z.b, z.kv, z.t, z.d} || v.shape != Shape{z.b, z.kv, z.t, z.e}) {
    return absl::InvalidArgumentError(cat("expected q [b,h,s,d], k [b,kv,t,d] and v [b,kv,t,e], ", found()));
  }
  if (z.kv == 0 ? z.h != 0 : z.h % z.kv != 0)
    return absl::InvalidArgumentError(cat("expected query heads in a multiple of the key heads, ", found()));
  const Shape scores{z.b, z.h, z.s, z.t};
  if (!checked_elements(scores) || !checked_elements({z.b, z.h, z.s, z.e}))
    return absl::InvalidArgumentError(cat("the scores ", to_string(scores), " are too large"));
  if (mask.dtype != DType::kInvalid) {
    bool fits = (mask.dtype == DType::kBool || is_float(mask.dtype)) && mask.rank() == 4;
    for (int d = 0; fits && d < 4; ++d) fits = mask.shape[d] == 1 || mask.shape[d] == scores[d];
    if (!fits)
      return absl::InvalidArgumentError(cat("expected a bool or float mask of rank 4 that broadcasts to ",
                                            to_string(scores), ", found ", to_string(mask)));
  }
  if (!std::isfinite(use.attrs.f("scale")))
    return absl::InvalidArgumentError(cat("expected a finite scale, found ", use.attrs.f("scale")));
  return z;
}

double attention_flops(const OpView& use, size_t q, int over_d, int over_e) {
  auto z = attention_sizes(use, use.inputs[q], use.inputs[q + 1], use.inputs[q + 2], {});
  if (!z.ok()) return 0;
  double pairs = static_cast<double>(z->s) * static_cast<double>(z->t);
  if (use.attrs.i("causal", 0) != 0 && z->t >= z->s)
    pairs -= static_cast<double>(z->s) * static_cast<double>(z->s - 1) / 2;
  return 2 * static_cast<double>(z->b) * static_cast<double>(z->h) * pairs *
         (over_d * static_cast<double>(z->d) + over_e * static_cast<double>(z->e));
}

std::string attention_mask_factors(const TensorType& mask, const AttentionSizes& z) {
  const int64_t sizes[] = {z.b, z.h, z.s, z.t};
  constexpr std::string_view kFactors[] = {"b", "(kv g)", "s", "t"};
  std::string text;
  for (int d = 0; d < 4; ++d) append(text, " ", mask.shape[d] == 1 && sizes[d] != 1 ? "*" : kFactors[d]);
  return text;
}

void AttentionRow::scores(int64_t b, int64_t h, int64_t i, std::vector<double>& scores) const {
  scores.assign(z_.t, -kInfinity);
  for (int64_t j = 0; j < z_.t; ++j) {
    if (causal_ && j > i + (z_.t - z_.s)) continue;
    double dot = 0;
    int64_t qi = ((b * z_.h + h) * z_.s + i) * z_.d, kj = ((b * z_.kv + h / z_.group()) * z_.t + j) * z_.d;
    for (int64_t c = 0; c < z_.d; ++c) dot += q_.f[qi + c] * k_.f[kj + c];
    double score = dot * scale_;
    if (mask_) {
      const Shape& m = mask_->type.shape;
      auto along = [&](int d, int64_t index) { return m[d] == 1 ? 0 : index; };
      int64_t at = ((along(0, b) * m[1] + along(1, h)) * m[2] + along(2, i)) * m[3] + along(3, j);
      if (is_float(mask_->type.dtype)) {
        score += mask_->f[at];
        if (score > -kInfinity) score = std::max(score, kLeastMaskedScore);
      } else if (!mask_->i[at]) {
        score = -kInfinity;
      }
    }
    scores[j] = score;
  }
}

namespace {

absl::StatusOr<std::vector<TensorType>> attention_types(const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(AttentionSizes z,
                           attention_sizes(use, use.inputs[0], use.inputs[1], use.inputs[2], optional_type(use, 3)));
  return std::vector<TensorType>{{use.dtype(), {z.b, z.h, z.s, z.e}}, {DType::kF32, {z.b, z.h, z.s}}};
}

// "b (kv g) s d^, b kv t^ d, b kv t e, * * s t -> b (kv g) s e, b (kv g) s"; s^ where causality compares positions.
std::string attention_formula(const OpView& use) {
  auto z = attention_sizes(use, use.inputs[0], use.inputs[1], use.inputs[2], optional_type(use, 3));
  PARTITA_CHECK(z.ok(), std::string(z.status().message()));
  std::string text = cat("b (kv g) s", use.attrs.i("causal", 0) != 0 ? "^" : "", " d^, b kv t^ d, b kv t e");
  if (optional_type(use, 3).dtype != DType::kInvalid) append(text, ",", attention_mask_factors(use.inputs[3], *z));
  return text + " -> b (kv g) s e, b (kv g) s";
}

void attention_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  AttentionSizes z = *attention_sizes(use, use.inputs[0], use.inputs[1], use.inputs[2], optional_type(use, 3));
  AttentionRow row(z, use.attrs.f("scale"), use.attrs.i("causal", 0) != 0, *in[0], *in[1],
                   in.size() > 3 ? in[3] : nullptr);
  std::vector<double> p;
  for (int64_t b = 0; b < z.b; ++b)
    for (int64_t h = 0; h < z.h; ++h)
      for (int64_t i = 0; i < z.s; ++i) {
        row.scores(b, h, i, p);
        double max = -kInfinity, sum = 0;
        for (double x : p) max = std::isnan(x) ? x : std::max(max, x);
        int64_t at = (b * z.h + h) * z.s + i;
        outputs[1].f[at] = max;
        if (max == -kInfinity) continue;  // no key attended
        for (double& x : p) sum += x = std::exp(x - max);
        outputs[1].f[at] = max + std::log(sum);
        for (int64_t j = 0; j < z.t; ++j) {
          if (p[j] == 0) continue;  // hidden: whatever its value is, NaN too
          int64_t vj = ((b * z.kv + h / z.group()) * z.t + j) * z.e;
          for (int64_t c = 0; c < z.e; ++c) outputs[0].f[at * z.e + c] += p[j] / sum * in[2]->f[vj + c];
        }
      }
}

// [s, t] true where query i may see key j.
ValueId causal_pairs(Builder& b, const AttentionSizes& z) {
  ValueId i = b.emit("iota", {}, {{"size", z.s}, {"to", DType::kI64}}),
          j = b.emit("iota", {}, {{"size", z.t}, {"to", DType::kI64}});
  ValueId last = b.reshape(b.add_scalar(i, static_cast<double>(z.t - z.s)), {z.s, 1});
  return b.emit("le", {j, last});
}

// The math form on a graph. Query heads of one group share their keys, so they are folded into rows: [b, kv g, s, x]
// <-> [b, kv, g s, x].
struct Math {
  Builder& b;
  const Attrs& attrs;
  AttentionSizes z;

  Math(Builder& builder, const Attrs& attributes, ValueId q, ValueId k, ValueId v) : b(builder), attrs(attributes) {
    const Shape &sq = b.shape(q), &sk = b.shape(k);
    z = {sq[0], sq[1], sk[1], sq[2], sk[2], sq[3], b.shape(v)[3]};
  }

  ValueId fold(ValueId x) { return b.reshape(x, {z.b, z.kv, z.group() * z.s, b.shape(x)[3]}); }
  ValueId unfold(ValueId x) { return b.reshape(x, {z.b, z.h, z.s, b.shape(x)[3]}); }
  ValueId per_row(ValueId x) { return b.reshape(x, {z.b, z.h, z.s, 1}); }
  // x, or 0 where it is -inf: exponentials of a row without keys become zeros, not NaN.
  ValueId finite(ValueId x) {
    return b.select(b.emit("eq", {x, b.scalar(b.dtype(x), -kInfinity)}), b.scalar(b.dtype(x), 0), x);
  }

  // No lower than kLeastMaskedScore, unless hidden; nothing to do where no mask is added.
  ValueId lifted(ValueId x, ValueId mask) {
    if (mask == kNoValue || b.dtype(mask) == DType::kBool) return x;
    const ValueId hidden = b.emit("eq", {x, b.scalar(b.dtype(x), -kInfinity)});
    return b.select(hidden, x, b.emit("max", {x, b.scalar(b.dtype(x), kLeastMaskedScore)}));
  }

  // [b,h,s,t], -inf where hidden. q is scaled rather than the scores: they overflow f16 less easily, and q is the
  // smaller.
  ValueId scores(ValueId q, ValueId k, ValueId mask) {
    ValueId x = widen(b, unfold(b.matmul(fold(b.scale(q, attrs.f("scale"))), k, false, true)));
    ValueId hidden = b.scalar(b.dtype(x), -kInfinity);
    if (mask != kNoValue)
      x = b.dtype(mask) == DType::kBool ? b.select(mask, x, hidden) : b.add(x, b.cast(mask, b.dtype(x)));
    return attrs.i("causal", 0) != 0 ? b.select(causal_pairs(b, z), x, hidden) : x;
  }
};

// A causal use with its mask as a tensor; nothing for others.
std::vector<ValueId> attention_split_form(const OpUse& use) {
  if (use.attrs.i("causal", 0) == 0) return {};
  auto z = attention_sizes(use.view(), use.types[0], use.types[1], use.types[2], optional_type(use.view(), 3));
  PARTITA_CHECK(z.ok(), std::string(z.status().message()));
  ValueId mask = causal_mask(use.b, *z, use.inputs.size() > 3 ? use.inputs[3] : kNoValue);
  return use.b.emit_all("attention", {use.inputs[0], use.inputs[1], use.inputs[2], mask}, without_causality(use.attrs));
}

std::vector<ValueId> attention_expand(const OpUse& use) {
  Builder& b = use.b;
  ValueId q = use.inputs[0], k = use.inputs[1], v = use.inputs[2],
          mask = use.inputs.size() > 3 ? use.inputs[3] : kNoValue;
  Math m(b, use.attrs, q, k, v);
  ValueId x = m.scores(q, k, mask);
  ValueId max = m.finite(b.reduce("reduce_max", x, {3}, true)), e = b.emit("exp", {b.sub(x, max)}),
          sum = b.reduce_sum(e, {3}, true);
  ValueId none = b.emit("eq", {sum, b.scalar(b.dtype(x), 0)});
  ValueId p = b.div(e, b.select(none, b.scalar(b.dtype(x), 1), sum));
  ValueId out = m.unfold(b.matmul(m.fold(b.cast(p, b.dtype(q))), v));
  // Only what is kept of the scores is lifted: their gradient is that of the sum.
  ValueId lse = b.cast(b.add(m.lifted(max, mask), b.emit("log", {sum})), DType::kF32);
  return {out, b.reshape(lse, {m.z.b, m.z.h, m.z.s})};
}

// attention_grad covers all but two rare things, done in smaller ops: a gradient of lse, and that of a float mask
// (learned position biases; dead code where nobody asks for it).
std::vector<ValueId> attention_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId q = use.inputs[0], k = use.inputs[1], v = use.inputs[2],
          mask = use.inputs.size() > 3 ? use.inputs[3] : kNoValue;
  ValueId out = use.outputs[0], lse = use.outputs[1], g = use.gradients[0], g_lse = use.gradients[1];
  std::vector<ValueId> grads(4, kNoValue);
  if (g_lse != kNoValue || (mask != kNoValue && is_float(b.dtype(mask))))
    grads = attention_gradient_math(b, use.attrs, q, k, v, mask, out, lse, g, g_lse);
  if (g_lse == kNoValue) {
    auto fused = b.emit_all("attention_grad", {g, q, k, v, mask, out, lse}, use.attrs);
    std::copy(fused.begin(), fused.end(), grads.begin());
  }
  grads.resize(use.inputs.size());
  return grads;
}

}  // namespace

ValueId causal_mask(Builder& b, const AttentionSizes& z, ValueId mask) {
  ValueId pairs = b.reshape(causal_pairs(b, z), {1, 1, z.s, z.t});
  if (mask == kNoValue) return pairs;
  if (b.dtype(mask) == DType::kBool) return b.emit("and", {mask, pairs});
  return b.select(pairs, mask, b.scalar(b.dtype(mask), -kInfinity));
}

Attrs without_causality(const Attrs& attrs) {
  Attrs plain = attrs;
  plain.set("causal", int64_t{0});
  return plain;
}

// With p = exp(scores - lse): dv = p^T g, dp = g v^T, dscores = p (dp - sum(g out)), dq = dscores k, dk = dscores^T q.
// lse itself adds p g_lse to dscores.
std::vector<ValueId> attention_gradient_math(Builder& b, const Attrs& attrs, ValueId q, ValueId k, ValueId v,
                                             ValueId mask, ValueId out, ValueId lse, ValueId g, ValueId g_lse) {
  Math m(b, attrs, q, k, v);
  ValueId x = m.lifted(m.scores(q, k, mask), mask);
  DType wide = b.dtype(x), narrow = b.dtype(q);
  ValueId p = b.emit("exp", {b.sub(x, m.per_row(b.cast(m.finite(lse), wide)))}), slope = kNoValue;
  ValueId dv = b.full(narrow, b.shape(v), 0);
  if (g != kNoValue) {
    ValueId dp = widen(b, m.unfold(b.matmul(m.fold(g), v, false, true)));
    ValueId delta = b.reduce_sum(b.mul(widen(b, g), widen(b, out)), {3}, true);
    slope = b.sub(dp, delta);
    dv = b.matmul(m.fold(b.cast(p, narrow)), m.fold(g), true, false);
  }
  if (g_lse != kNoValue) {
    ValueId term = m.per_row(b.cast(g_lse, wide));
    slope = slope == kNoValue ? term : b.add(slope, term);
  }
  ValueId ds = b.mul(p, slope), folded = m.fold(b.cast(ds, narrow));
  ValueId dq = b.scale(m.unfold(b.matmul(folded, k)), attrs.f("scale")),
          dk = b.scale(b.matmul(folded, m.fold(q), true, false), attrs.f("scale"));
  ValueId dmask =
      mask != kNoValue && is_float(b.dtype(mask)) ? b.cast(b.sum_to(ds, b.shape(mask)), b.dtype(mask)) : kNoValue;
  return {dq, dk, dv, dmask};
}

// softmax(scale q k^T + mask) v. mask: bool (true = attend) or float (added; a sum below kLeastMaskedScore counts as
// that). causal = 1: query i attends keys j <= i + (t - s). A row without any key gives 0 and lse = -inf. Outputs: out
// [b,h,s,e], and in f32 lse [b,h,s] = log(sum(exp(scores))). 2 b h s t (d + e) operations. kernel: whose on a GPU,
// "cudnn" or "own"; it changes no more than rounding.
extern const OpDef kAttention = {
    .name = "attention",
    .min_inputs = 3,
    .max_inputs = 4,
    .attributes = "f scale, i causal?, s kernel?",
    .formula_of = attention_formula,
    .infer = attention_types,
    .work = WorkKind::kAttention,
    .flops = [](const OpView& use) { return attention_flops(use, 0, 1, 1); },
    .gradient = attention_gradient,
    .expand = attention_expand,
    .evaluate = attention_evaluate,
    .split_form = attention_split_form,
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
};

}  // namespace partita
