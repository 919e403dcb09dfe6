// Weights that an exporter wrote as Constant nodes, as onnxscript does of arrays in a function's body.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frontend/onnx/onnx_model.h"

namespace partita {

// The model with those that a glob of `trainable` matches among the initializers; nullopt where it matches none. The
// names of the others go to `left`: but for PyTorch's files, whose constants are no parameters.
std::optional<OnnxModel> with_constant_weights(const OnnxModel& model, const std::vector<std::string>& trainable,
                                               std::vector<std::string>& left);

// Those in the model's local functions, FUNCTION/NAME, which cannot be trained.
std::vector<std::string> weights_of_functions(const OnnxModel& model);

}  // namespace partita
