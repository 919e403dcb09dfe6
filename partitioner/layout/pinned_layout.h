// From pins to a layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "partitioner/layout/layout.h"

namespace partita {

// What the pins ask for, over `ranks` where that is said. The data axis takes the ranks that the pins leave; the
// pipeline does where a schedule is pinned and its stages are not. Stages that differ and leave their data axis open
// take equally many of the ranks that the others leave, or without `ranks` as many as the largest one. InvalidArgument
// where the numbers do not fit.
absl::StatusOr<Layout> pinned_layout(const Recipe& recipe, std::optional<int64_t> ranks,
                                     std::vector<std::string>& warnings);

// Whether pins of what lies on the host go together. InvalidArgument.
absl::Status check_offload(const PinRecipe& pin);

}  // namespace partita
