#include "frontend/ort_artifacts.h"
namespace partita {
bool is_ort_artifacts(const std::string&) { return false; }
absl::StatusOr<ImportedModel> import_ort_artifacts(const std::string&, const ImportOptions&) { return absl::UnimplementedError(""); }
}
