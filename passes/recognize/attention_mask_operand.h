// The masks of a spelled attention, taken together: what its attribute can say, and one operand for the rest.
#pragma once

#include <optional>
#include <vector>

#include "passes/recognize/attention_mask.h"

namespace partita {

struct MaskTerm {
  ValueId value;  // added, or the condition of a select
  bool added = true;
  bool negated = false;  // of a condition: scores stay where it does not hold
  double fill = 0;       // of a condition: the scores elsewhere
  int rank = 4;          // of the scores there
};

// What becomes of the masks: causality, conditions under which a key counts at all, and values to add.
struct AttentionMasks {
  struct Added {
    ValueId value = kNoValue;       // to add as it is; or
    std::vector<MaskCondition> at;  // `fill` where not all of these hold
    double fill = 0;
    int rank = 4;
  };
  struct Condition {
    MaskCondition condition;
    int rank = 4;
  };
  bool causal = false;
  std::vector<Condition> conditions;
  std::vector<Added> added;

  bool empty() const { return conditions.empty() && added.empty(); }
  // The operand, bool or of `type`, for scores [batch, heads, s, t]; kNoValue where there is none.
  ValueId emit(Rewriter& r, int64_t batch, int64_t heads, DType type) const;
};

// The same masks with causality taken out and conditions that always hold dropped. Nothing where they have no exact
// form as an operand.
std::optional<AttentionMasks> simplified(MaskAnalysis& analysis, const std::vector<MaskTerm>& terms);

}  // namespace partita
