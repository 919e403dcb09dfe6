// The model's forward part alone, imported for inference, as a program of one rank: what it makes of chosen values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program/program.h"
#include "tools/flow/model_source.h"
#include "tools/flow/weight_files.h"

namespace partita {

struct ForwardProgram {
  runtime::Program program;  // its outputs: the values, in the order asked for
  std::vector<InitialTensor> weights;
};

// `samples` in a run. `values`: outputs or values within the model, by their ONNX names; none: the scores that the loss
// compares with the labels (logits), as the recipe's loss or the model's own cross-entropy has them. Computed in f32,
// whatever precision the recipe trains in. NotFound names what the model has; errors of reading it.
absl::StatusOr<ForwardProgram> compile_prediction(ModelSource& source, int64_t samples,
                                                  std::vector<std::string> values);

}  // namespace partita
