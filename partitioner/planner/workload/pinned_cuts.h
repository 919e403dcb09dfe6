// Where pinned cuts fall among the units of a plan, and how a plan's cuts are pinned.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/planner/workload/workload.h"

namespace partita {

// Units of each part that `cuts` make (PinRecipe::cuts): a part begins at the first node that a glob matches.
// InvalidArgument where a glob matches nothing, leaves nothing to the part before, or matches inside of a unit, which a
// plan keeps in one piece; the message then names the places around it.
absl::StatusOr<std::vector<int>> pinned_cuts(const Workload& workload, const std::vector<std::string>& cuts);

// The other way round: a name for the beginning of each of `parts` but the first, from which pinned_cuts(), and
// compile, make the same parts. Empty where a part has no name of its own to begin with.
std::vector<std::string> names_of_cuts(const Workload& workload, const std::vector<int>& parts);

}  // namespace partita
