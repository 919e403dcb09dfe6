// Shardings of parameters that the recipe pins by name.
#pragma once

#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "ir/mesh/sharding.h"
#include "ir/recipe/recipe.h"
#include "partitioner/shard/mesh_axes.h"

namespace partita {

// InvalidArgument where a pin matches no parameter.
absl::Status check_value_pins(const Graph& graph, const PinRecipe& pin);

// The last pin that matches the state replaces `sharding`. {"layers.*.up.weight": {out: tensor}}: `in` and `out` are
// the dimensions that a product sums over and keeps, dimN is the N-th dimension. InvalidArgument where the state has no
// such dimension, the mesh no such axis, or the sizes do not divide.
absl::Status apply_value_pins(const Graph& graph, const State& state, const PinRecipe& pin, const MeshAxes& axes,
                              Sharding& sharding);

}  // namespace partita
