// Reads the batches of coming steps on a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/data_source.h"

namespace partita::runtime {

// Samples [first, first + count) of the global batch for one input: what a rank holds.
struct SampleRange {
  int input = 0;
  int64_t first = 0, count = 0;
};

// Samples begin with a cache line: a step may read them where they are.
template <typename T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  LineAllocator() = default;
  template <typename U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
};
using Samples = std::vector<std::byte, LineAllocator<std::byte>>;

struct Batch {
  int64_t step = 0;
  int64_t valid_samples = 0;           // of the global batch
  std::optional<double> padding = {};  // DataSource::padding()
  std::vector<Samples> data;           // one per SampleRange, in the same order
};

class Prefetcher {
 public:
  // Starts reading at `first_step` at once, up to but not including `end_step`, at most `depth` batches ahead. Several
  // prefetchers may share a source.
  Prefetcher(std::shared_ptr<const DataSource> source, std::vector<SampleRange> ranges, int64_t first_step,
             int64_t end_step, int64_t depth = 2);
  // Waits for the read in progress, at most one batch; one that waits for samples to come is given up, of all that
  // share the source.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The batch of a step, waiting for it if need be. Steps come in order; asking for another one drops what was read
  // ahead and starts again from there. The source's error for that step, or OutOfRange at `end_step`.
  absl::StatusOr<Batch> take(int64_t step);
  // Whether the batch of a step, or its error, is there, or is so within this time.
  bool ready_within(int64_t step, std::chrono::milliseconds time);
  // Whether it is there, while steps before it are still to be taken.
  bool has(int64_t step) const;
  // What take() would give at once, while steps before it are still to be taken; until take() or ready_within() is
  // called next. Null where it is not there, or is an error.
  const Batch* peek(int64_t step) const;
  // Lets the buffers of a used batch be filled again. Optional.
  void give_back(Batch batch);
  // Seconds that take() has waited, in all.
  double stall_seconds() const;

 private:
  struct Slot {
    absl::Status status;
    Batch batch;
  };
  void work();
  absl::Status fill(int64_t step, Batch& batch) const;
  // Under mutex_: the first batch that is there, or comes next, is that of the step.
  void aim_at(int64_t step);

  const std::shared_ptr<const DataSource> source_;
  const std::vector<SampleRange> ranges_;
  const int64_t end_step_;
  const size_t depth_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slot> ready_;
  std::vector<Batch> spare_;
  int64_t next_step_;       // the step that the thread reads next
  int64_t generation_ = 0;  // counts restarts: what was begun before one is dropped
  bool failed_ = false, stop_ = false;
  bool hungry_ = true;  // until `depth` batches are ready, then not before half of them are taken: one waking for many
  double stall_seconds_ = 0;
  std::thread thread_;
};

}  // namespace partita::runtime
