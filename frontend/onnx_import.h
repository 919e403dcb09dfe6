// ONNX -> one forward graph of IR ops, with ONNX names kept.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "frontend/import/imported_model.h"
#include "frontend/onnx/onnx_model.h"

namespace partita {

// Reads a model file, or a folder of ONNX Runtime training artifacts, or a folder with a model.onnx. InvalidArgument,
// Unimplemented, NotFound: one line that names file, node and advice.
absl::StatusOr<ImportedModel> import_onnx(const std::string& path, const ImportOptions& options = {});
// The graph of a model that has been read, and how its training_info, where it has one, trains it.
absl::StatusOr<ImportedModel> import_onnx_model(const OnnxModel& model, const ImportOptions& options = {});

}  // namespace partita
