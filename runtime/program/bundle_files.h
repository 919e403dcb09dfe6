// A bundle as its manifest lists it. The SHA-256 of manifest.json is the bundle's root: it stands for every byte of
// every file that the manifest lists (`files`), and nothing else of the folder is read.
//
//   "files": {"program.partita": {"bytes": 1234, "sha256": "9f86…"},
//             "initial.safetensors": {"bytes": 498000000, "chunk_bytes": 1048576, "chunks":
//             "initial.safetensors.chunks"}, "initial.safetensors.chunks": {"bytes": 30940, "sha256": "2c26…"}}
//
// A list of chunks has a line of 64 hex digits for each, in order. `sha256` of the manifest is that of all else that it
// says, in JSON that is indented by two.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/program/certificate_check.h"
#include "runtime/program/program.h"
#include "runtime/program/sealed_file.h"

namespace partita::runtime {

class BundleFiles {
 public:
  // Reads the manifest. NotFound where there is none; DataLoss where it is damaged or was edited; FailedPrecondition
  // where the certificate is of another bundle, or is not there or not signed as `trust` asks, and where lib/ or
  // verify/ holds a file that is not listed.
  static absl::StatusOr<std::shared_ptr<const BundleFiles>> open(const std::string& folder,
                                                                 const BundleTrust& trust = {});
  // For who proves it: a certificate that is there counts for nothing.
  static absl::StatusOr<std::shared_ptr<const BundleFiles>> open_unproved(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const std::string& root() const { return root_; }  // 64 hex digits
  const nlohmann::json& manifest() const { return manifest_; }
  bool has(const std::string& name) const { return seals_.count(name) > 0; }
  std::vector<std::string> names() const;  // of all files that are listed, sorted

  // A listed file: opened, by the first who asks. Thread-safe. FailedPrecondition where it is not listed, DataLoss and
  // NotFound name the file.
  absl::StatusOr<std::shared_ptr<const SealedFile>> file(const std::string& name) const;
  // The same, every byte of it checked.
  absl::StatusOr<std::shared_ptr<const SealedFile>> checked(const std::string& name) const;
  // The programs of a listed image, checked.
  absl::StatusOr<std::vector<Program>> programs(const std::string& name) const;
  // Another place of a listed file, such as the executable that runs: checked.
  absl::Status check_copy(const std::string& name, const std::string& path) const;
  // Every listed file, the first weights only with `weights`: ranks check the parts of them that they read.
  absl::Status check(int threads, bool weights) const;

 private:
  BundleFiles(std::string folder, std::string root, nlohmann::json manifest)
      : folder_(std::move(folder)), root_(std::move(root)), manifest_(std::move(manifest)) {}
  absl::Status read_seals();
  absl::Status read_chunks();
  absl::Status check_manifest() const;
  absl::Status check_strangers() const;

  const std::string folder_, root_;
  const nlohmann::json manifest_;
  std::map<std::string, FileSeal> seals_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const SealedFile>> open_;  // under mutex_
};

// Hashes every file of `folder`, writes lists of chunks for the large ones, and last of all manifest.json, which is
// `manifest` with `files` and its hash in it. A certificate that was there goes: it is of another bundle.
absl::Status seal_bundle(const std::string& folder, nlohmann::json manifest);

}  // namespace partita::runtime
