// Which shard a sample is in, and the shards that are open: opened when they are first asked for, some of them kept.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/records/record_store.h"
#include "runtime/data/shards/shard_store.h"

namespace partita::runtime {

// `Part`: what a shard is opened as. Thread-safe.
template <typename Part>
class OpenShards {
 public:
  using Open = std::function<absl::StatusOr<std::unique_ptr<Part>>(const std::string& path)>;
  using Count = std::function<int64_t(const Shard&)>;  // samples of a shard

  OpenShards(std::shared_ptr<ShardStore> store, Open open, Count count)
      : store_(std::move(store)), open_(std::move(open)), count_(std::move(count)) {
    take_index();
  }

  ShardStore& store() const { return *store_; }
  // kUnlimited as long as shards may come.
  int64_t samples() const {
    const std::lock_guard lock(mutex_);
    return complete_ ? ends_.back() : kUnlimited;
  }

  struct Place {
    std::shared_ptr<const Part> part;
    int64_t sample = 0;  // of the part
    int64_t rest = 0;    // samples of the part from there on
  };
  // Waits for the shard where it is still to come. OutOfRange where the data turned out to end before.
  absl::StatusOr<Place> find(int64_t sample) {
    PARTITA_ASSIGN_OR_RETURN(const size_t k, shard_of(sample));
    Place place;
    {
      const std::lock_guard lock(mutex_);
      place.sample = sample - ends_[k];
      place.rest = ends_[k + 1] - sample;
      place.part = look_up(k);
    }
    if (place.part != nullptr) return place;
    PARTITA_ASSIGN_OR_RETURN(place.part, open(k));
    const std::lock_guard lock(mutex_);
    if (look_up(k) == nullptr) {
      kept_.emplace_front(k, place.part);
      if (kept_.size() > kMostKept) kept_.pop_back();
    }
    return place;
  }

 private:
  static constexpr size_t kMostKept = 256;

  void take_index() {  // under mutex_, but at the beginning
    const ShardIndex index = store_->index();
    for (size_t k = ends_.size() - 1; k < index.shards.size(); ++k)
      ends_.push_back(ends_.back() + count_(index.shards[k]));
    complete_ = index.complete;
  }

  // Shards of no sample are passed over.
  absl::StatusOr<size_t> shard_of(int64_t sample) {
    std::unique_lock lock(mutex_);
    while (sample >= ends_.back()) {
      if (complete_)
        return absl::OutOfRangeError(cat("data ", quote(store_->place(), 1000), " are complete with ", ends_.back(),
                                         " samples, and sample ", sample, " is asked for; make steps fewer, or resume",
                                         " with --shuffle to take them again"));
      const size_t next = ends_.size() - 1;
      lock.unlock();
      PARTITA_RETURN_IF_ERROR(store_->wait_for(next));
      lock.lock();
      take_index();
    }
    return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), sample) - ends_.begin()) - 1;
  }

  std::shared_ptr<const Part> look_up(size_t k) {
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) { return entry.first == k; });
    if (found == kept_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().second;
  }

  absl::StatusOr<std::shared_ptr<const Part>> open(size_t k) {
    constexpr int kTries = 3;  // others may drive it out of the cache meanwhile
    for (int n = 1;; ++n) {
      PARTITA_ASSIGN_OR_RETURN(const std::string path, store_->path(k));
      absl::StatusOr<std::unique_ptr<Part>> part = open_(path);
      if (part.ok()) return std::shared_ptr<const Part>(*std::move(part));
      if (!absl::IsNotFound(part.status()) || n == kTries) return part.status();
    }
  }

  const std::shared_ptr<ShardStore> store_;
  const Open open_;
  const Count count_;
  mutable std::mutex mutex_;
  std::vector<int64_t> ends_ = {0};  // samples before each shard, and of all
  bool complete_ = false;
  std::list<std::pair<size_t, std::shared_ptr<const Part>>> kept_;  // used last first
};

}  // namespace partita::runtime
