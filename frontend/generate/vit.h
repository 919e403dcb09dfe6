#pragma once

#include "frontend/generate/graph_writer.h"

namespace partita {

struct VitSpec {
  int64_t layers = 12, hidden = 768, heads = 12;
  int64_t patch = 16, image = 224, classes = 1000, batch = kBatchSymbol;
};

// torchvision's VisionTransformer, MLP of 4 hidden: input `x` [batch, 3, image, image], output `logits` [batch,
// classes].
absl::StatusOr<GraphWriter> generate_vit(const VitSpec& spec);

}  // namespace partita
