// Layer norm and RMS norm that exporters spell out become layer_norm and rms_norm.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// (x - mean) / sqrt(mean((x - mean)^2) + epsilon) scale + bias, and x / sqrt(mean(x^2) + epsilon) scale, over trailing
// dimensions; sqrt and division, reciprocal or rsqrt; factors in any order and grouping (LLaMA: scale (x rstd)).
// Without a scale that fits, ones. Only where nothing else reads the values between.
absl::StatusOr<Graph> recognize_norm(const Graph& graph, const PassContext& context);

}  // namespace partita
