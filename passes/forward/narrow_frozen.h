// A frozen weight that the program reads only as rounded to one 16-bit type is held in that type alone: 2 bytes an
// element in place of 4 and a copy of 2.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// Changes the states' types; their initial values stay in the f32 of the model's file, to be rounded (to nearest even,
// as the casts did) where a bundle is written. Also removes dead nodes.
absl::StatusOr<Graph> narrow_frozen(const Graph& graph, const PassContext& context);

}  // namespace partita
