#include <cmath>
#include <limits>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/attention.h"

namespace partita {
namespace {

enum Input { kG, kQ, kK, kV, kMask, kOut, kLse };

AttentionSizes known_sizes(const OpView& use) {
  auto z = attention_sizes(use, use.inputs[kQ], use.inputs[kK], use.inputs[kV], use.inputs[kMask]);
  PARTITA_CHECK(z.ok(), std::string(z.status().message()));
  return *z;
}

absl::StatusOr<std::vector<TensorType>> attention_grad_types(const OpView& use) {
  if (use.inputs.size() != 7)
    return absl::InvalidArgumentError(cat("expected 7 inputs (the mask may be absent), found ", use.inputs.size()));
  PARTITA_ASSIGN_OR_RETURN(AttentionSizes z,
                           attention_sizes(use, use.inputs[kQ], use.inputs[kK], use.inputs[kV], use.inputs[kMask]));
  TensorType out{use.dtype(kQ), {z.b, z.h, z.s, z.e}}, lse{DType::kF32, {z.b, z.h, z.s}};
  if (use.inputs[kG] != out || use.inputs[kOut] != out || use.inputs[kLse] != lse) {
    return absl::InvalidArgumentError(cat("expected a gradient and an output ", to_string(out), " and a log-sum ",
                                          to_string(lse), ", found ", to_string(use.inputs[kG]), ", ",
                                          to_string(use.inputs[kOut]), " and ", to_string(use.inputs[kLse])));
  }
  return std::vector<TensorType>{use.inputs[kQ], use.inputs[kK], use.inputs[kV]};
}

// Given lse, every pair of a query and a key contributes on its own: query positions and the heads of a group leave
// partial dk and dv, key positions a partial dq.
std::string attention_grad_formula(const OpView& use) {
  const char* role = use.attrs.i("causal", 0) != 0 ? "^" : "+";
  std::string text = cat("~ b (kv g+) s", role, " e^, b (kv g) s d^, b kv t", role, " d, b kv t e");
  if (use.dtype(kMask) != DType::kInvalid)
    append(text, ",", attention_mask_factors(use.inputs[kMask], known_sizes(use)));
  return text + ", b (kv g) s e, b (kv g) s -> b (kv g) s d, b kv t d, b kv t e";
}

void attention_grad_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  AttentionSizes z = known_sizes(use);
  double scale = use.attrs.f("scale");
  AttentionRow row(z, scale, use.attrs.i("causal", 0) != 0, *in[kQ], *in[kK], in[kMask]);
  std::vector<double> p;
  for (int64_t b = 0; b < z.b; ++b)
    for (int64_t h = 0; h < z.h; ++h)
      for (int64_t i = 0; i < z.s; ++i) {
        row.scores(b, h, i, p);
        int64_t at = (b * z.h + h) * z.s + i, head = (b * z.kv + h / z.group()) * z.t;
        double lse = in[kLse]->f[at], delta = 0;
        for (int64_t c = 0; c < z.e; ++c) delta += in[kG]->f[at * z.e + c] * in[kOut]->f[at * z.e + c];
        for (int64_t j = 0; j < z.t; ++j) {
          if (p[j] == -std::numeric_limits<double>::infinity()) continue;
          double pj = std::exp(p[j] - lse), dp = 0;
          for (int64_t c = 0; c < z.e; ++c) {
            dp += in[kG]->f[at * z.e + c] * in[kV]->f[(head + j) * z.e + c];
            outputs[2].f[(head + j) * z.e + c] += pj * in[kG]->f[at * z.e + c];
          }
          double ds = pj * (dp - delta) * scale;
          for (int64_t c = 0; c < z.d; ++c) {
            outputs[0].f[at * z.d + c] += ds * in[kK]->f[(head + j) * z.d + c];
            outputs[1].f[(head + j) * z.d + c] += ds * in[kQ]->f[at * z.d + c];
          }
        }
      }
}

std::vector<ValueId> attention_grad_split_form(const OpUse& use) {
  if (use.attrs.i("causal", 0) == 0) return {};
  std::vector<ValueId> operands(use.inputs.begin(), use.inputs.end());
  operands[kMask] = causal_mask(use.b, known_sizes(use.view()), operands[kMask]);
  return use.b.emit_all("attention_grad", std::move(operands), without_causality(use.attrs));
}

}  // namespace

// (gradient of out, q, k, v, mask?, out, lse) of an attention with the same attributes -> dq, dk, dv (Dao et al. 2022,
// algorithm 4).
extern const OpDef kAttentionGrad = {
    .name = "attention_grad",
    .min_inputs = 4,  // the mask, the fifth, may be absent
    .max_inputs = 7,
    .attributes = "f scale, i causal?, s kernel?",
    .formula_of = attention_grad_formula,
    .infer = attention_grad_types,
    .work = WorkKind::kAttention,
    // Scores again, dq and dk over d; dp and dv over e.
    .flops = [](const OpView& use) { return attention_flops(use, 1, 3, 2); },
    .expand = [](const OpUse& use) -> std::vector<ValueId> {
      auto x = use.inputs;
      auto grads =
          attention_gradient_math(use.b, use.attrs, x[kQ], x[kK], x[kV], x[kMask], x[kOut], x[kLse], x[kG], kNoValue);
      grads.resize(3);
      return grads;
    },
    .evaluate = attention_grad_evaluate,
    .split_form = attention_grad_split_form,
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
};

}  // namespace partita
