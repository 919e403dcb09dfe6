#pragma once

#include "frontend/generate/graph_writer.h"

namespace partita {

struct ResnetSpec {
  int64_t depth = 50;  // 18, 34 or 50
  int64_t classes = 1000, image = 224, batch = kBatchSymbol;
};

// torchvision's ResNet in training mode: input `x` [batch, 3, image, image], output `logits` [batch, classes].
absl::StatusOr<GraphWriter> generate_resnet(const ResnetSpec& spec);

}  // namespace partita
