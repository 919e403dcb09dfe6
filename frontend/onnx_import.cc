#include "frontend/onnx_import.h"

#include <sys/stat.h>

#include "base/quote.h"
#include "base/status.h"
#include "frontend/import/importer.h"
#include "frontend/training/ort_artifacts.h"
#include "frontend/training/training_info.h"

namespace partita {

absl::StatusOr<ImportedModel> import_onnx_model(const OnnxModel& model, const ImportOptions& options) {
  if (model.training.empty()) return import_forward(model, options);
  try {
    TrainableModel trainable = read_training_info(model, options);
    ImportOptions own = options;
    if (own.trainable.empty()) own.trainable = trainable.spec.parameters;
    PARTITA_ASSIGN_OR_RETURN(ImportedModel result, import_forward(trainable.model, own));
    result.training = std::move(trainable.spec);
    return result;
  } catch (const ImportError& e) {
    return with_context(e.status, quote(model.path));
  }
}

absl::StatusOr<ImportedModel> import_onnx(const std::string& path, const ImportOptions& options) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    if (is_ort_artifacts(path)) return import_ort_artifacts(path, options);
    return import_onnx(path + "/model.onnx", options);
  }
  // A file of such a folder stands for the folder.
  size_t slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "." : path.substr(0, slash),
              file = slash == std::string::npos ? path : path.substr(slash + 1);
  if (file == "training_model.onnx" && is_ort_artifacts(folder)) return import_ort_artifacts(folder, options);
  PARTITA_ASSIGN_OR_RETURN(OnnxModel model, load_onnx_model(path));
  return import_onnx_model(model, options);
}

}  // namespace partita
