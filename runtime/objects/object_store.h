// Named bytes in a slower place than this host's disk: a folder (a network's file system), or a bucket of an object
// store that speaks S3's protocol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/objects/transfers.h"

namespace partita::runtime {

struct ObjectInfo {
  std::string name;
  int64_t bytes = 0;
};

// Names are paths below the place, "step-5/manifest.json". An object is there whole or not at all. Thread-safe. Errors
// of all functions: Unavailable (worth another try), NotFound (no such object or bucket), InvalidArgument (refused:
// credentials, permission), ResourceExhausted (no space), Cancelled (told to give up).
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // Those whose names begin with `prefix`, sorted.
  virtual absl::StatusOr<std::vector<ObjectInfo>> list(const std::string& prefix) = 0;
  // Makes or replaces one. Large ones go in parts, several at once.
  virtual absl::Status put(const std::string& name, std::span<const std::byte> bytes) = 0;
  // The bytes from `offset` on that fill `out`; an error where there are fewer.
  virtual absl::Status read(const std::string& name, int64_t offset, std::span<std::byte> out) = 0;
  // It is not there afterwards.
  virtual absl::Status remove(const std::string& name) = 0;
  // As the user named it.
  virtual const std::string& place() const = 0;
};

// `place`: a folder, made where it is missing, or "s3://BUCKET/PREFIX". Nothing is asked of an object store yet.
// `environment` and the files that it names have credentials, region and endpoint, as the AWS tools read them
// (s3_settings.h). `transfers` may be null. InvalidArgument; FailedPrecondition where libcurl is missing.
absl::StatusOr<std::unique_ptr<ObjectStore>> open_object_store(const std::string& place,
                                                               const EnvironmentMap& environment, Transfers* transfers);

// Copies an object into a file, which appears whole or not at all.
absl::Status fetch_object(ObjectStore& store, const ObjectInfo& object, const std::string& path);

}  // namespace partita::runtime
