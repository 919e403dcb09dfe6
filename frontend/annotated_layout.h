// The layout that an ONNX file's device annotations say, as pins.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ir/recipe/recipe.h"

namespace partita {

// `--like`: a preset (ir/recipe/pins.h), or an annotated .onnx file: the pins that went along, or where others wrote
// it, data ranks from the split of the inputs' samples, tensor ranks and value pins from that of the weights, and a
// pipeline from the nodes' stages. NotFound or InvalidArgument where the file has no annotations, such that pins
// cannot say, or such that are not those of its own pins.
absl::Status apply_like(Recipe& recipe, const std::string& like);

}  // namespace partita
