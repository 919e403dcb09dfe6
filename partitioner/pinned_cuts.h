// Where pinned cuts fall among the units of a plan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/workload.h"

namespace partita {

// The name of the ONNX node that a node comes from; empty where it has none.
std::string_view onnx_name(const Graph& graph, const Node& node);

// Units of each part that `cuts` make (PinRecipe::cuts): a part begins at the first node that a glob matches.
// InvalidArgument where a glob matches nothing, leaves nothing to the part before, or matches inside of a unit, which a
// plan keeps in one piece; the message then names the places around it.
absl::StatusOr<std::vector<int>> pinned_cuts(const Workload& workload, const std::vector<std::string>& cuts);

}  // namespace partita
