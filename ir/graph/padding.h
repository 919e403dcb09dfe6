// A dimension made longer than it was (so that ranks can divide it evenly), and how the ops that touch it go on giving
// the same results: what the padding holds is followed from op to op, and is replaced by what counts for nothing where
// an op would mix it with the rest.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/builder.h"
#include "ir/op/scalar.h"

namespace partita {

// What is known of a value beyond the old end of its longer dimensions. Finite is meant as inside: where no number
// inside overflows.
struct PadValue {
  bool shared = false;  // made of operands without longer dimensions alone: the very number that is inside too
  bool finite = false;
  bool known = false;
  ScalarValue value;             // if known
  std::optional<int64_t> least;  // of positions: the old end, at which they go on; nullopt: nothing is known

  static PadValue inside() { return {.shared = true, .finite = true, .known = false, .value = {}}; }
  static PadValue number(double f);
  static PadValue zero() { return number(0); }
  static PadValue of(const Literal& uniform);  // all elements of which are the same
};

// The results of an elementwise body there. `ends`: per dimension of the results where it ended, if that alone is
// longer.
std::vector<PadValue> padding_of(const ScalarFunction& function, const std::vector<PadValue>& inputs,
                                 const std::vector<std::optional<int64_t>>& ends = {});

struct PaddedValue {
  ValueId value = kNoValue;
  PadValue holds = PadValue::inside();
};

// Emits nodes of a graph on operands with longer dimensions.
class PaddedEmitter {
 public:
  explicit PaddedEmitter(Builder& b) : b_(b) {}

  // The use that took `types` and now takes `inputs`; its results have `shapes`. Sums see zeros beyond the old ends,
  // maxima -inf and minima inf. FailedPrecondition where the op does not say what it does there: it keeps a longer
  // dimension whole (and has no `lengthened`), or has it as a part of one.
  absl::StatusOr<std::vector<PaddedValue>> emit(const OpDef& op, const Attrs& attrs, std::span<const TensorType> types,
                                                const std::vector<PaddedValue>& inputs, std::span<const Shape> shapes);

  // `x`, which had `shape`, with `neutral` beyond the old ends.
  PaddedValue with_padding(const PaddedValue& x, const Shape& shape, double neutral);

 private:
  Builder& b_;
  std::map<std::tuple<ValueId, double, Segment>, ValueId> masked_;
};

}  // namespace partita
