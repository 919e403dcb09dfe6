#include "ir/ops/work.h"

#include "ir/ops/attention.h"
#include "ir/ops/window.h"

namespace partita {
namespace {

// `over_d` products of size b h s t d and `over_e` of size b h s t e; the pairs that causality hides are not computed.
double attention_flops(const OpView& use, size_t q, int over_d, int over_e) {
  auto z = attention_sizes(use, use.inputs[q], use.inputs[q + 1], use.inputs[q + 2], {});
  if (!z.ok()) return 0;
  double pairs = static_cast<double>(z->s) * static_cast<double>(z->t);
  if (use.attrs.i("causal", 0) != 0 && z->t >= z->s)
    pairs -= static_cast<double>(z->s) * static_cast<double>(z->s - 1) / 2;
  return 2 * static_cast<double>(z->b) * static_cast<double>(z->h) * pairs *
         (over_d * static_cast<double>(z->d) + over_e * static_cast<double>(z->e));
}

// A product over the taps of every element of y [n, o, spatial…]: w is [o, c / groups, kernel…]. Taps on padding count:
// a GEMM has them.
double conv_flops(const Shape& y, const Shape& w) {
  double flops = 2;
  for (int64_t size : y) flops *= static_cast<double>(size);
  for (size_t d = 1; d < w.size(); ++d) flops *= static_cast<double>(w[d]);
  return flops;
}

Shape conv_output(const Attrs& attrs, const Shape& x, const Shape& w) {
  return window_output(x[0], w[0], known_windows(attrs, x, {w.begin() + 2, w.end()}));
}

struct Work {
  std::string_view op;
  WorkKind kind;
  double (*flops)(const OpView&);  // nullptr: the formula's points
};

constexpr Work kWork[] = {
    {"matmul", WorkKind::kMatrix, nullptr},
    {"conv", WorkKind::kMatrix,
     [](const OpView& use) { return conv_flops(conv_output(use.attrs, use.shape(0), use.shape(1)), use.shape(1)); }},
    {"conv_grad_data", WorkKind::kMatrix, [](const OpView& use) { return conv_flops(use.shape(0), use.shape(1)); }},
    {"conv_grad_weight", WorkKind::kMatrix,
     [](const OpView& use) { return conv_flops(use.shape(0), use.attrs.ints("weight_shape")); }},
    {"attention", WorkKind::kAttention, [](const OpView& use) { return attention_flops(use, 0, 1, 1); }},
    // Scores again, dq and dk over d; dp and dv over e.
    {"attention_grad", WorkKind::kAttention, [](const OpView& use) { return attention_flops(use, 1, 3, 2); }},
};

const Work* find_work(const OpDef& op) {
  for (const Work& w : kWork) {
    if (w.op == op.name) return &w;
  }
  return nullptr;
}

}  // namespace

WorkKind work_kind(const OpDef& op) {
  const Work* w = find_work(op);
  return w ? w->kind : WorkKind::kMemory;
}

double use_flops(const OpDef& op, const OpView& use) {
  const Work* w = find_work(op);
  if (w && w->flops) return w->flops(use);
  if (op.flops_per_point == 0) return 0;
  double flops = op.flops_per_point;
  for (const Factor& f : bound_formula(op, use).factors) flops *= static_cast<double>(f.size);
  return flops;
}

}  // namespace partita
