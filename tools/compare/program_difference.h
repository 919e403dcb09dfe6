// Whether two bundles ask for the same: their serial programs, whatever the layouts decided of their form (what is
// computed twice, how many samples a run takes) and the precision (where numbers are rounded).
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "ir/graph/graph.h"

namespace partita {

// InvalidArgument where they are of two models: the input or state that one of them has otherwise, or not.
absl::Status check_same_model(const Graph& a, const Graph& b, const std::string& name_a, const std::string& name_b);

// The first node, in the order of `a`, that does something else in `b`; nullopt: there is none. Where they take another
// number of samples, sizes and constants are not compared.
struct ProgramDifference {
  std::string text, node;  // `node`: as describe_node() has it
};
std::optional<ProgramDifference> program_difference(const Graph& a, const Graph& b, const std::string& name_a,
                                                    const std::string& name_b);

}  // namespace partita
