// What attention and attention_grad share: sizes and checks of their operands.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/op/op_def.h"
#include "ir/type/literal.h"

namespace partita {

// q [b,h,s,d], k [b,kv,t,d], v [b,kv,t,e], mask of rank 4 whose dimensions broadcast to [b,h,s,t]; query head i reads
// key and value head i / (h / kv).
struct AttentionSizes {
  int64_t b = 0, h = 0, kv = 0, s = 0, t = 0, d = 0, e = 0;

  int64_t group() const { return kv == 0 ? 0 : h / kv; }
};

// Checks operands q, k, v, mask (of type kInvalid where absent) and attributes scale and causal.
absl::StatusOr<AttentionSizes> attention_sizes(const OpView& use, const TensorType& q, const TensorType& k,
                                               const TensorType& v, const TensorType& mask);
// The mask's dimensions as formula text: factors b, (kv g), s, t, or '*' where it broadcasts.
std::string attention_mask_factors(const TensorType& mask, const AttentionSizes& sizes);

// Operations of `over_d` products of size b h s t d and `over_e` of size b h s t e, for a use whose q, k, v are inputs
// `q`, q + 1, q + 2; the pairs that causality hides are not computed.
double attention_flops(const OpView& use, size_t q, int over_d, int over_e);

// The mask of a causal use as a tensor, so that the op need not compare positions by itself and may be split by them:
// `mask` (or kNoValue) with what causality hides. The attributes without causality.
ValueId causal_mask(Builder& b, const AttentionSizes& sizes, ValueId mask);
Attrs without_causality(const Attrs& attrs);

// Reference scores of one query row: scale q.k + mask for every key, -inf where the mask or causality hides it.
class AttentionRow {
 public:
  AttentionRow(const AttentionSizes& sizes, double scale, bool causal, const Tensor& q, const Tensor& k,
               const Tensor* mask)
      : z_(sizes), scale_(scale), causal_(causal), q_(q), k_(k), mask_(mask) {}
  // Fills `scores` (t elements) for batch b, head h, query i.
  void scores(int64_t b, int64_t h, int64_t i, std::vector<double>& scores) const;

 private:
  const AttentionSizes& z_;
  double scale_;
  bool causal_;
  const Tensor &q_, &k_;
  const Tensor* mask_;
};

// Gradients in smaller ops, of a use whose inputs are q, k, v, mask? and outputs out, lse. `g` is the gradient of out,
// `g_lse` that of lse or kNoValue; either way kNoValue is zero. Returns dq, dk, dv and dmask (kNoValue unless the mask
// is a float tensor).
std::vector<ValueId> attention_gradient_math(Builder& b, const Attrs& attrs, ValueId q, ValueId k, ValueId v,
                                             ValueId mask, ValueId out, ValueId lse, ValueId g, ValueId g_lse);

}  // namespace partita
