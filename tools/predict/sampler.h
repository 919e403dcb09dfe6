// Draws the next token from a model's scores.
#pragma once

#include <cstdint>
#include <span>

namespace partita {

struct SamplerOptions {
  double temperature = 1;  // 0: always the highest score
  int64_t top_k = 0;       // only the so many highest; 0: all
  double top_p = 1;        // of those, the highest that have this share of the probability together
  uint64_t seed = 0;
};

// The token drawn for place `index` of text `row`: the same for the same scores, options and place. `scores`: logits,
// one for each token; NaN counts as the lowest. Of equal scores the first goes first.
int64_t draw_token(std::span<const float> scores, const SamplerOptions& options, uint64_t row, uint64_t index);

}  // namespace partita
