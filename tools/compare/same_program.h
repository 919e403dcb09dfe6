// Two bundles of one program: one that was changed or compiled anew beside the one that it was. There a step that reads
// the same bits leaves the same bits, so a difference is found from its first one on, however small.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/compare/captures.h"

namespace partita {

// Whether the steps of both should leave the same bits, by what their evidence says: they compute the same nodes of the
// same graphs, on one kind of processor, and sum in the same order.
bool same_program(const verifier::ProgramSet& a, const verifier::ProgramSet& b);

struct StepDifference {
  std::string text;                // in lines
  std::vector<std::string> nodes;  // that the step computes, as describe_node() has them
};
// The first step of the same programs that read the same in both, and left something else in `b`.
std::optional<StepDifference> first_other_bits(const verifier::ProgramSet& set, const Captures& a, const Captures& b,
                                               const std::string& name_a, const std::string& name_b, int64_t step);

}  // namespace partita
