#include "runtime/objects/object_store.h"

#include <algorithm>
#include <mutex>

#include "base/atomic_file.h"
#include "base/status.h"
#include "runtime/files/in_parallel.h"
#include "runtime/objects/folder_store.h"
#include "runtime/objects/s3_store.h"

namespace partita::runtime {

absl::StatusOr<std::unique_ptr<ObjectStore>> open_object_store(const std::string& place,
                                                               const EnvironmentMap& environment,
                                                               Transfers* transfers) {
  return place.starts_with("s3://") ? open_s3_store(place, environment, transfers)
                                    : open_folder_store(place, transfers);
}

absl::Status fetch_object(ObjectStore& store, const ObjectInfo& object, const std::string& path) {
  constexpr int64_t kChunk = 16 << 20;
  constexpr int kReaders = 4;
  PARTITA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  PARTITA_RETURN_IF_ERROR(file.reserve(object.bytes));
  std::mutex mutex;
  absl::Status status;
  in_parallel(kReaders, static_cast<size_t>((object.bytes + kChunk - 1) / kChunk), [&](size_t k) {
    const int64_t at = static_cast<int64_t>(k) * kChunk;
    std::vector<std::byte> chunk(static_cast<size_t>(std::min(object.bytes - at, kChunk)));
    absl::Status copied = store.read(object.name, at, chunk);
    if (copied.ok()) copied = file.write_at(at, chunk);
    std::lock_guard lock(mutex);
    status.Update(copied);
  });
  PARTITA_RETURN_IF_ERROR(status);
  return file.commit();
}

}  // namespace partita::runtime
