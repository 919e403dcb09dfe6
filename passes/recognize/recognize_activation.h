// Activations that exporters spell out become one op each: gelu (erf and tanh forms), silu, sigmoid, softplus.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// 0.5 x (1 + erf(x / sqrt 2)), 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), x sigmoid(x), 1 / (1 + exp(-x)), log(1
// + exp(x)), in any order and grouping of their factors. Only where nothing else reads the values between.
absl::StatusOr<Graph> recognize_activation(const Graph& graph, const PassContext& context);

}  // namespace partita
