#pragma once

#include "frontend/generate/graph_writer.h"

namespace partita {

struct MlpSpec {
  std::vector<int64_t> sizes = {784, 128, 64, 10};  // of the input, the hidden layers and the output
  int64_t batch = kBatchSymbol;
};

// Linear layers fc1, fc2, … with ReLU between them: input `x` [batch, first size], output `logits` [batch, last size].
absl::StatusOr<GraphWriter> generate_mlp(const MlpSpec& spec);

}  // namespace partita
