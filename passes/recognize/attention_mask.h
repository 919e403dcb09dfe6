// What an attention mask says: which part of it is plain causality, which parts hide nothing, and what is left.
//
//   and(true, eq(0, 0), le(key position, query position), padding [b,1,1,t])   ->   causal, and padding
//   select(le(key position, query position), 0, -inf) + bias                     ->   causal, plus bias
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "passes/recognize/pattern.h"

namespace partita {

// A condition that lets a query attend a key, or, negated, hides it.
struct MaskCondition {
  ValueId value;
  bool negated = false;
};

// The conjunction of conditions: attended where all hold. `causal`: one more, key j <= query i + (t - s).
struct MaskConditions {
  bool causal = false;
  bool never = false;  // a condition that holds nowhere
  std::vector<MaskCondition> rest;
};

// Knows constant masks whether folded or still computed (of 8192 x 8192, say): it compares vectors of positions, never
// makes the matrix.
class MaskAnalysis {
 public:
  // Scores of `queries` by `keys`; masks broadcast to [..., queries, keys] from the right.
  MaskAnalysis(const GraphFacts& facts, int64_t queries, int64_t keys)
      : facts_(facts), queries_(queries), keys_(keys) {}

  // Whether causality leaves every row a key.
  bool each_query_sees_a_key() const { return keys_ >= queries_; }

  // The conditions of a bool value, taken apart at "and" (or, negated, at "or"), without those that always hold.
  MaskConditions conditions(MaskCondition condition);
  // An additive mask that is 0 where a condition holds and `fill` (-inf or <= -1e4) elsewhere. Nothing for other masks;
  // a mask of zeros has a condition without rest.
  struct Fill {
    MaskConditions conditions;
    double fill = 0;
  };
  std::optional<Fill> fill(ValueId additive);

 private:
  // A value of two numbers: `yes` where the condition holds, else `no`. Without a condition (kNoValue): `yes`
  // everywhere.
  struct TwoValued {
    ValueId condition = kNoValue;
    double yes = 1, no = 0;
  };
  enum class Kind { kAlways, kNever, kCausal, kAntiCausal, kOther };  // anti-causal: holds where causality hides

  TwoValued two_valued(ValueId v, int depth = 0) const;
  std::optional<TwoValued> combined(const Node& node, int depth) const;
  Kind kind(ValueId condition);
  Kind compared(const Node& node);
  Kind literal_kind(const Literal& literal) const;
  // `ordered`: along a row the condition changes at most once; its ends and the diagonal's two sides are looked at.
  Kind kind_of(int64_t rows, int64_t columns, bool ordered, const std::function<bool(int64_t, int64_t)>& holds) const;
  std::optional<Fill> literal_fill(ValueId additive);
  // The literal of a value that depends on constants alone, computed where it must be and is small; else nullptr.
  const Literal* constant(ValueId v);

  const GraphFacts& facts_;
  int64_t queries_, keys_;
  absl::flat_hash_map<ValueId, Kind> kinds_;
  absl::flat_hash_map<ValueId, std::unique_ptr<Literal>> computed_;
};

}  // namespace partita
