#include "runtime/objects/object_store.h"

#include <algorithm>

#include "base/atomic_file.h"
#include "base/status.h"
#include "runtime/objects/folder_store.h"
#include "runtime/objects/s3_store.h"

namespace partita::runtime {

absl::StatusOr<std::unique_ptr<ObjectStore>> open_object_store(const std::string& place,
                                                               const EnvironmentMap& environment,
                                                               const std::atomic<bool>* give_up) {
  return place.starts_with("s3://") ? open_s3_store(place, environment, give_up) : open_folder_store(place, give_up);
}

absl::Status fetch_object(ObjectStore& store, const ObjectInfo& object, const std::string& path) {
  constexpr int64_t kChunk = 16 << 20;
  PARTITA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  PARTITA_RETURN_IF_ERROR(file.reserve(object.bytes));
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(object.bytes, kChunk)));
  for (int64_t at = 0; at < object.bytes; at += kChunk) {
    const std::span<std::byte> part(chunk.data(), static_cast<size_t>(std::min(object.bytes - at, kChunk)));
    PARTITA_RETURN_IF_ERROR(store.read(object.name, at, part));
    PARTITA_RETURN_IF_ERROR(file.append(part));
  }
  return file.commit();
}

}  // namespace partita::runtime
