// ModelProto.training_info (ONNX training preview): Gradient and Adam, Adagrad or Momentum nodes of
// ai.onnx.preview.training.
#pragma once

#include "absl/status/statusor.h"
#include "frontend/import/imported_model.h"

namespace partita {

struct TrainableModel {
  OnnxModel model;  // the inference graph, with the loss as its first output and first values as the initialization
                    // graphs set them
  TrainingSpec spec;
};

// Reads the one training_info of `model`. The part of the algorithm graph that makes the loss joins the forward graph;
// gradients and updates become the spec. Throws ImportError (InvalidArgument, Unimplemented) for an algorithm of
// another form.
TrainableModel read_training_info(const OnnxModel& model, const ImportOptions& options);

}  // namespace partita
