// ONNX Runtime training artifacts: a folder with training_model.onnx, eval_model.onnx, optimizer_model.onnx and
// checkpoint.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "frontend/import/imported_model.h"

namespace partita {

// Whether the folder holds such artifacts.
bool is_ort_artifacts(const std::string& folder);

// The forward part of the training model, with the checkpoint's weights and a training spec from the optimizer model.
absl::StatusOr<ImportedModel> import_ort_artifacts(const std::string& folder, const ImportOptions& options);

}  // namespace partita
