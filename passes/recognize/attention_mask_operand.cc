#include "passes/recognize/attention_mask_operand.h"

#include <limits>

namespace partita {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kAbsorbs = -1e30;  // x + this is this, for any score x

// The masks as one operand of attention, or kNoValue.
class MaskEmitter {
 public:
  MaskEmitter(Rewriter& r, int64_t batch, int64_t heads, DType type)
      : r_(r), b_(r.builder()), batch_(batch), heads_(heads), type_(type) {}

  ValueId emit(const AttentionMasks& masks) {
    ValueId condition = kNoValue, sum = kNoValue;
    for (const AttentionMasks::Condition& c : masks.conditions) condition = both(condition, of(c.condition, c.rank));
    for (const AttentionMasks::Added& a : masks.added) {
      ValueId term = kNoValue;
      if (a.value != kNoValue) {
        term = b_.cast(in_rank_4(r_(a.value), a.rank), type_);
      } else {
        ValueId at = kNoValue;
        for (const MaskCondition& c : a.at) at = both(at, of(c, a.rank));
        term = b_.select(at, b_.scalar(type_, 0), b_.scalar(type_, a.fill));
      }
      sum = sum == kNoValue ? term : b_.add(sum, term);
    }
    if (sum == kNoValue || condition == kNoValue) return sum == kNoValue ? condition : sum;
    return b_.add(sum, b_.select(condition, b_.scalar(type_, 0), b_.scalar(type_, -kInfinity)));
  }

 private:
  ValueId both(ValueId a, ValueId b) { return a == kNoValue ? b : b_.emit("and", {a, b}); }

  ValueId of(const MaskCondition& c, int rank) {
    ValueId v = in_rank_4(r_(c.value), rank);
    return c.negated ? b_.emit("not", {v}) : v;
  }

  // A mask that broadcasts to [b h, s, t] (rank 3) or [b, h, s, t].
  ValueId in_rank_4(ValueId v, int rank) {
    Shape s = b_.shape(v);
    s.insert(s.begin(), static_cast<size_t>(rank) - s.size(), 1);
    if (rank == 3) {
      bool each = s[0] != 1;
      s[0] = each ? heads_ : 1;
      s.insert(s.begin(), each ? batch_ : 1);
    }
    return b_.reshape(v, s);
  }

  Rewriter& r_;
  Builder& b_;
  int64_t batch_, heads_;
  DType type_;
};

}  // namespace

ValueId AttentionMasks::emit(Rewriter& r, int64_t batch, int64_t heads, DType type) const {
  return MaskEmitter(r, batch, heads, type).emit(*this);
}

std::optional<AttentionMasks> simplified(MaskAnalysis& analysis, const std::vector<MaskTerm>& terms) {
  AttentionMasks out;
  std::vector<MaskTerm> low_causal;  // causality by a low number: the same as hiding where each row keeps a key
  for (const MaskTerm& t : terms) {
    std::optional<MaskAnalysis::Fill> f;
    if (t.added)
      f = analysis.fill(t.value);
    else
      f = MaskAnalysis::Fill{analysis.conditions({t.value, t.negated}), t.fill};
    if (!f) {
      out.added.push_back({t.value, {}, 0, t.rank});
      continue;
    }
    const MaskConditions& c = f->conditions;
    if (c.never) return std::nullopt;
    if (f->fill == -kInfinity) {
      out.causal |= c.causal;
      for (const MaskCondition& rest : c.rest) out.conditions.push_back({rest, t.rank});
    } else if (c.causal && c.rest.empty()) {
      low_causal.push_back(t);
    } else if (c.causal || !c.rest.empty()) {
      if (!t.added && f->fill > kAbsorbs) return std::nullopt;
      if (t.added && c.causal)
        out.added.push_back({t.value, {}, 0, t.rank});
      else if (c.causal)
        out.added.push_back({kNoValue, {{t.value, t.negated}}, f->fill, t.rank});
      else
        out.added.push_back({kNoValue, c.rest, f->fill, t.rank});
    }
  }
  for (const MaskTerm& t : low_causal) {
    if (out.empty() && analysis.each_query_sees_a_key()) {
      out.causal = true;
    } else if (t.added) {
      out.added.push_back({t.value, {}, 0, t.rank});
    } else if (t.fill <= kAbsorbs) {
      out.added.push_back({kNoValue, {{t.value, t.negated}}, t.fill, t.rank});
    } else {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace partita
