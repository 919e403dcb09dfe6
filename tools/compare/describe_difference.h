// A difference in words: where, how much, how much is usual, what computed it of what.
#pragma once

#include <string>

#include "tools/compare/captures.h"
#include "tools/compare/rank_copies.h"
#include "tools/compare/step_check.h"

namespace partita {

// The first difference of a report that has one, with the ranks, the step that computed it, and its operands' state.
std::string describe_difference(const std::string& side, const RankCopies& copies, const Captures& captures,
                                const StepReport& report, int64_t step);
// Of tensors that nobody's ranks hold.
std::string describe_difference(const std::string& side, const Graph& serial, const Difference& d, int64_t step);

// "[0:8, 16:32]": the least box of a shape's indices that these elements lie in.
std::string box_of(const std::vector<int64_t>& elements, const Shape& shape);
// "ranks 0, 1".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace partita
