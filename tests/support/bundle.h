// A bundle that `partita compile` wrote, for tests that look into it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

inline absl::StatusOr<verifier::Bundle> read_bundle(const std::string& folder) {
  auto files = runtime::BundleFiles::open_unproved(folder);
  if (!files.ok()) return files.status();
  return verifier::read_bundle(**files);
}

inline std::shared_ptr<const runtime::SafetensorsFile> open_weights(const std::string& path) {
  auto file = runtime::SafetensorsFile::open(path);
  return file.ok() ? std::make_shared<const runtime::SafetensorsFile>(*std::move(file)) : nullptr;
}

}  // namespace partita
