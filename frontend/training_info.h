// ModelProto.training_info (ONNX training preview): Gradient and Adam, Adagrad or Momentum nodes of ai.onnx.preview.training.
#pragma once

#include "absl/status/status.h"
#include "frontend/onnx_import.h"

namespace partita {

// Fills result.training from model.training, which is not empty, and applies the initialization graphs to the states' first values. `result` holds the imported
// forward graph. InvalidArgument, Unimplemented.
absl::Status read_training_info(const OnnxModel& model, const ImportOptions& options, ImportedModel& result);

}  // namespace partita
