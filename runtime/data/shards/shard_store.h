// The shards of a dataset as files of this host: those of a folder where they are, those of an object store in a cache.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/shards/shard_index.h"
#include "runtime/objects/object_store.h"

namespace partita::runtime {

// Where shards of object stores are kept on this host.
struct DataCache {
  std::string folder;                 // empty: $XDG_CACHE_HOME/partita/data, or ~/.cache/partita/data
  int64_t bytes = int64_t{64} << 30;  // of each dataset; what is being read may exceed it
};

// Thread-safe.
class ShardStore {
 public:
  // Reads the index. Errors: those of read_shard_index() and of open_object_store(); InvalidArgument where the cache's
  // folder cannot be made.
  static absl::StatusOr<std::shared_ptr<ShardStore>> open(const std::string& place, const DataCache& cache);
  ~ShardStore();
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  const std::string& place() const { return place_; }
  // As it was read last; the shards that it had stay what they are.
  ShardIndex index() const;
  // Reads the index again until it lists shard `k` or is complete. DataLoss where what it listed has changed;
  // Cancelled once give_up() was called.
  absl::Status wait_for(size_t k);
  // The path of shard `k` on this host, fetched where it must be, its SHA-256 checked then; the next one is fetched
  // meanwhile. A shard that other processes' fetching drives out of the cache before it is opened is NotFound then:
  // ask again. An object store that does not answer is asked for ten minutes.
  absl::StatusOr<std::string> path(size_t k);
  // What waits ends soon.
  void give_up();

 private:
  explicit ShardStore(std::string place) : place_(std::move(place)) {}
  absl::Status read_index();
  absl::StatusOr<std::string> fetch(const Shard& shard);
  absl::Status fetch_checked(const Shard& shard, const std::string& path);
  void make_room(int64_t coming, const std::string& keep) const;
  void fetch_ahead(size_t k);
  bool pause(std::chrono::milliseconds time);

  const std::string place_;
  std::string cache_;  // folder; empty: shards are where they are
  int64_t cache_bytes_ = 0;
  Transfers transfers_;
  std::unique_ptr<ObjectStore> store_;
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  ShardIndex index_;         // under mutex_
  std::thread ahead_;        // under mutex_
  bool ahead_runs_ = false;  // under mutex_
};

}  // namespace partita::runtime
