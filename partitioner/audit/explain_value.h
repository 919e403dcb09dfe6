// Why a value lies on the ranks as it does. Each axis of the mesh is followed back from the value, through the formulas
// of the ops that make it, to the choice that it comes from; where the value lacks an axis, to the op that ended it.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "partitioner/shard/plan_stages.h"

namespace partita {

// `name`: of a state or value of the training graph or of an ONNX node (what it makes), or of an output ("grad/NAME"
// where gradients are kept). Text of several lines. NotFound where nothing has the name, with the nearest; errors of
// localize().
absl::StatusOr<std::string> explain_value(const PlannedStages& planned, const Layout& layout, const PinRecipe& pin,
                                          std::string_view name);

}  // namespace partita
