// A rank's part of the data: which samples it reads of each batch, and how they get into a program's inputs. Inputs
// that no step reads (of a pipeline's inner stages, say) are not read from the data either; the data's size and layout
// are looked at all the same. To a device micro-batches go beside what it computes (Device::upload), where it has room.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/data_source.h"
#include "runtime/data/prefetcher.h"
#include "runtime/data/sample_feed.h"
#include "runtime/execute/executor.h"
#include "runtime/program/placement.h"

namespace partita::runtime {

// The data inputs of a program.
std::vector<InputSpec> input_specs(const Program& program);

class InputStage {
 public:
  // Opens the data for batches of `program().samples_per_step`; `executor` outlives it. The data's errors.
  static absl::StatusOr<std::unique_ptr<InputStage>> open(const DataConfig& config, Executor& executor);

  const DataSource& source() const { return *source_; }
  // Starts reading batches [first, end) ahead. InvalidArgument where the data hold too few samples, or a feed lacks an
  // input.
  absl::Status start(int64_t first, int64_t end);
  // Whether there is a batch for a step: false where a feed was closed before; waits for a feed.
  bool has(int64_t step) { return feed_ == nullptr || feed_->wait(step - first_); }
  // Whether take() would not wait, or not after this time; a feed has been waited for.
  bool ready_within(int64_t step, std::chrono::milliseconds time) {
    return !prefetcher_ || prefetcher_->ready_within(step, time);
  }
  // Whether the batch of a step to come is there already.
  bool read_ahead(int64_t step) const { return !prefetcher_ || prefetcher_->has(step); }
  // In the order of steps. The data's errors.
  absl::StatusOr<Batch> take(int64_t step);
  void give_back(Batch batch);
  // Writes a micro-batch's part into the inputs' memory.
  absl::Status stage(const Batch& batch, int64_t micro_batch, int64_t slot);
  // Sends up what a step to come begins with, where its batch has been read: stage() finds it there. What goes up
  // otherwise before that takes its place.
  absl::Status upload_ahead(int64_t step);
  // Seconds of waiting, by take() and as told, in all.
  double stall_seconds() const { return waited_ + (prefetcher_ ? prefetcher_->stall_seconds() : 0); }
  void add_stall(double seconds) { waited_ += seconds; }

 private:
  // One data input as this rank reads it: a run of samples, and the pieces of them that it holds.
  struct Column {
    const ProgramInput* input = nullptr;
    int source = 0;                // among the source's columns
    int64_t first = 0, count = 0;  // samples within the micro-batch
    std::vector<LogicalPiece> pieces;
    bool direct = false;  // the samples are the operand's bytes
    bool copied = false;  // into the operand's memory: they are fed, or read there after the step
  };
  InputStage(Executor& executor, const DataConfig& config)
      : executor_(executor), ahead_(config.prefetch), feed_(config.feed) {}
  absl::Status add_column(const ProgramInput& input, int source);
  // Where a micro-batch's samples of a column begin in the global batch.
  int64_t first_sample(const Column& column, int64_t micro_batch) const;
  std::span<const std::byte> samples(const Batch& batch, int64_t micro_batch, size_t column) const;
  absl::Status check_fed(int64_t step) const;
  // The columns' bytes of a micro-batch, in the batch or put together in the host's memory of a slot.
  std::vector<std::span<const std::byte>> parts(const Batch& batch, int64_t micro_batch, int64_t slot) const;
  // Sends it up, if it is not there.
  absl::Status upload(const Batch& batch, int64_t micro_batch);
  static void scatter(const Column& column, std::span<const std::byte> data, std::span<std::byte> own);

  Executor& executor_;
  const int64_t ahead_;  // batches
  std::shared_ptr<const DataSource> source_;
  const std::shared_ptr<SampleFeed> feed_;  // null: batches are read ahead
  int64_t first_ = 0;                       // step of the feed's first batch
  std::optional<Prefetcher> prefetcher_;
  std::vector<Column> columns_;
  bool uploads_ = false;                 // the device has room for it
  std::optional<int64_t> first_staged_;  // the micro-batch that a step begins with
  struct Uploaded {
    int64_t number = -1, step = 0, micro_batch = 0;
  };
  Uploaded uploaded_;  // last by this
  double waited_ = 0;
};

}  // namespace partita::runtime
