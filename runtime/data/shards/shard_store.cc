#include "runtime/data/shards/shard_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kLookAgain(1000), kSayAfter(5000), kFirstPause(500), kLongestPause(30000), kGiveUpAfter(600000);

// Where downloads go that nobody said a folder for: as freedesktop.org has it.
std::string default_cache(const EnvironmentMap& environment) {
  const auto value = [&](const char* name) {
    const auto it = environment.find(name);
    return it == environment.end() ? std::string() : it->second;
  };
  const std::string base = value("XDG_CACHE_HOME"), home = value("HOME");
  if (!base.empty()) return base + "/partita/data";
  return home.empty() ? (fs::temp_directory_path() / "partita-data").string() : home + "/.cache/partita/data";
}

// Held by one thread of one of this host's processes; others that want it wait.
class HostLock {
 public:
  explicit HostLock(const std::string& path) : file_(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
    while (file_ >= 0 && ::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~HostLock() {
    if (file_ >= 0) ::close(file_);
  }
  HostLock(const HostLock&) = delete;
  HostLock& operator=(const HostLock&) = delete;

 private:
  const int file_;
};

bool has_size(const std::string& path, int64_t bytes) {
  std::error_code error;
  return static_cast<int64_t>(fs::file_size(path, error)) == bytes && !error;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ShardStore>> ShardStore::open(const std::string& place, const DataCache& cache) {
  std::shared_ptr<ShardStore> shards(new ShardStore(place));
  const EnvironmentMap environment = read_environment();
  PARTITA_ASSIGN_OR_RETURN(shards->store_, open_object_store(place, environment, &shards->transfers_));
  PARTITA_ASSIGN_OR_RETURN(shards->index_, read_shard_index(*shards->store_));
  if (!place.starts_with("s3://")) return shards;
  // Each dataset has a folder of its own: two may have shards of one name.
  shards->cache_ = cat(cache.folder.empty() ? default_cache(environment) : cache.folder, "/",
                       sha256_hex(as_byte_span(place)).substr(0, 16));
  shards->cache_bytes_ = cache.bytes;
  std::error_code error;
  fs::create_directories(shards->cache_, error);
  if (error) return file_error("make the folder of the data's cache,", shards->cache_, error.value());
  return shards;
}

ShardStore::~ShardStore() {
  give_up();
  if (ahead_.joinable()) ahead_.join();
}

void ShardStore::give_up() {
  transfers_.give_up = true;
  const std::lock_guard lock(mutex_);
  woken_.notify_all();
}

ShardIndex ShardStore::index() const {
  const std::lock_guard lock(mutex_);
  return index_;
}

// False: it was told to give up.
bool ShardStore::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !woken_.wait_for(lock, time, [&] { return transfers_.give_up.load(); });
}

absl::Status ShardStore::read_index() {
  PARTITA_ASSIGN_OR_RETURN(ShardIndex now, read_shard_index(*store_));
  const std::lock_guard lock(mutex_);
  const size_t known = index_.shards.size();
  if (now.kind != index_.kind || now.dtype != index_.dtype || now.window != index_.window ||
      now.shards.size() < known || !std::equal(index_.shards.begin(), index_.shards.end(), now.shards.begin()) ||
      (index_.complete && now != index_))
    return absl::DataLossError(cat(quote(cat(place_, "/", kShardIndexName), 1000),
                                   " has changed: shards may only be added, at its end, while it is not complete"));
  index_ = std::move(now);
  return absl::OkStatus();
}

absl::Status ShardStore::wait_for(size_t k) {
  for (milliseconds waited(0);; waited += kLookAgain) {
    const ShardIndex known = index();
    if (k < known.shards.size() || known.complete) return absl::OkStatus();
    if (waited == kSayAfter)
      std::fprintf(stderr, "waiting for shard %zu of %s: its index has %zu, and is not complete\n", k + 1,
                   quote(place_, 1000).c_str(), known.shards.size());
    if (waited.count() > 0 && !pause(kLookAgain)) return absl::CancelledError("told to give up waiting for data");
    const absl::Status read = read_index();
    if (!read.ok() && !absl::IsUnavailable(read)) return read;
  }
}

absl::StatusOr<std::string> ShardStore::path(size_t k) {
  const Shard shard = index().shards.at(k);
  if (cache_.empty()) {
    const std::string path = cat(place_, "/", shard.name);
    if (has_size(path, shard.bytes)) return path;
    return absl::DataLossError(
        cat("shard ", quote(path, 1000), " is not there with the ", shard.bytes, " bytes that the index says"));
  }
  PARTITA_ASSIGN_OR_RETURN(std::string path, fetch(shard));
  fetch_ahead(k + 1);
  return path;
}

absl::StatusOr<std::string> ShardStore::fetch(const Shard& shard) {
  const fs::path path = fs::path(cache_) / shard.name;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return file_error("make the folder of", path.string(), error.value());
  const HostLock lock(cat(path.parent_path().string(), "/.", path.filename().string(), ".lock"));
  if (!has_size(path, shard.bytes)) {
    make_room(shard.bytes, path);
    PARTITA_RETURN_IF_ERROR(fetch_checked(shard, path));
    make_room(0, path);  // others have fetched meanwhile
  }
  fs::last_write_time(path, fs::file_time_type::clock::now(), error);  // what was asked for last goes last
  return path.string();
}

// The store itself tries again for some seconds; networks are away for minutes.
absl::Status ShardStore::fetch_checked(const Shard& shard, const std::string& path) {
  const std::string hidden = cat(fs::path(path).parent_path().string(), "/.", fs::path(path).filename().string());
  milliseconds next = kFirstPause;
  absl::Status fetched;
  for (milliseconds waited(0); waited < kGiveUpAfter; waited += next, next = std::min(next * 2, kLongestPause)) {
    fetched = fetch_object(*store_, {shard.name, shard.bytes}, hidden);
    if (!absl::IsUnavailable(fetched)) break;
    if (!pause(next)) return absl::CancelledError("told to give up fetching data");
  }
  PARTITA_RETURN_IF_ERROR(with_context(fetched, cat("shard ", quote(cat(place_, "/", shard.name), 1000))));
  std::string found;
  {
    PARTITA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(hidden));
    found = sha256_hex(file.bytes());
  }
  std::error_code error;
  if (found != shard.sha256) {
    fs::remove(hidden, error);
    return absl::DataLossError(cat("shard ", quote(cat(place_, "/", shard.name), 1000), " has SHA-256 ", found,
                                   ", and the index says ", shard.sha256,
                                   "; it was changed after it was listed, or damaged"));
  }
  fs::rename(hidden, path, error);
  return error ? file_error("rename", hidden, error.value()) : absl::OkStatus();
}

// Removes what was asked for longest ago. Who has it open keeps what it reads.
void ShardStore::make_room(int64_t coming, const std::string& keep) const {
  struct Held {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  const HostLock lock(cat(cache_, "/.room.lock"));  // two that make room for each other would leave nothing
  std::vector<Held> held;
  int64_t total = coming;
  std::error_code error;
  for (fs::recursive_directory_iterator at(cache_, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (!at->is_regular_file(gone) || at->path().filename().string().starts_with('.')) continue;
    const Held file{at->last_write_time(gone), static_cast<int64_t>(at->file_size(gone)), at->path()};
    if (gone) continue;
    total += file.bytes;
    if (file.path != keep) held.push_back(file);
  }
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.used < b.used; });
  for (const Held& file : held) {
    if (total <= cache_bytes_) return;
    if (fs::remove(file.path, error)) total -= file.bytes;
  }
}

void ShardStore::fetch_ahead(size_t k) {
  const std::lock_guard lock(mutex_);
  if (ahead_runs_ || k >= index_.shards.size() || transfers_.give_up) return;
  if (ahead_.joinable()) ahead_.join();
  ahead_runs_ = true;
  ahead_ = std::thread([this, shard = index_.shards[k]] {
    // What goes wrong is found, and said, when the shard is needed.
    fetch(shard).status().IgnoreError();
    const std::lock_guard done(mutex_);
    ahead_runs_ = false;
  });
}

}  // namespace partita::runtime
