#include "runtime/data/prefetcher.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "base/cat.h"
#include "base/fault.h"
#include "base/status.h"

namespace partita::runtime {

Prefetcher::Prefetcher(std::shared_ptr<const DataSource> source, std::vector<SampleRange> ranges, int64_t first_step,
                       int64_t end_step, int64_t depth)
    : source_(std::move(source)),
      ranges_(std::move(ranges)),
      end_step_(end_step),
      depth_(static_cast<size_t>(std::max<int64_t>(1, depth))),
      next_step_(first_step),
      thread_([this] { work(); }) {}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  source_->give_up();
  thread_.join();
}

absl::Status Prefetcher::fill(int64_t step, Batch& batch) const {
  batch.step = step;
  batch.valid_samples = source_->valid_samples(step);
  batch.padding = source_->padding(step);
  batch.data.resize(ranges_.size());
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const SampleRange& range = ranges_[i];
    if (range.input < 0 || range.input >= static_cast<int>(source_->inputs().size()) || range.count < 0 ||
        range.count > source_->global_batch()) {
      return absl::InvalidArgumentError(
          cat("data: range ", i, " asks for ", range.count, " samples of input ", range.input));
    }
    const InputSpec& spec = source_->inputs()[static_cast<size_t>(range.input)];
    batch.data[i].resize(static_cast<size_t>((spec.batched ? range.count : 1) * sample_bytes(spec)));
    PARTITA_RETURN_IF_ERROR(source_->fetch(step, range.first, range.count, range.input, batch.data[i]));
  }
  return absl::OkStatus();
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || (!failed_ && hungry_ && next_step_ < end_step_); });
    if (stop_) return;
    const int64_t step = next_step_, generation = generation_;
    Slot slot;
    if (!spare_.empty()) {
      slot.batch = std::move(spare_.back());
      spare_.pop_back();
    }
    lock.unlock();
    try {
      slot.status = fill(step, slot.batch);
    } catch (...) {
      slot.status = with_context(status_of_exception(), "data: the next batch");
    }
    lock.lock();
    if (generation != generation_) continue;
    ++next_step_;
    failed_ = !slot.status.ok();
    ready_.push_back(std::move(slot));
    hungry_ = ready_.size() < depth_;
    changed_.notify_all();
  }
}

void Prefetcher::aim_at(int64_t step) {
  while (!ready_.empty() && ready_.front().batch.step < step) ready_.pop_front();
  const int64_t coming = ready_.empty() ? next_step_ : ready_.front().batch.step;
  if (coming != step) {
    ready_.clear();
    next_step_ = step;
    ++generation_;
  }
  if (ready_.empty()) {
    // A failed batch is always the last one read: with it gone, the thread may go on (or try that step again).
    failed_ = false;
    hungry_ = true;
    changed_.notify_all();
  }
}

bool Prefetcher::ready_within(int64_t step, std::chrono::milliseconds time) {
  if (step >= end_step_) return true;
  std::unique_lock lock(mutex_);
  aim_at(step);
  return changed_.wait_for(lock, time, [&] { return !ready_.empty(); });
}

bool Prefetcher::has(int64_t step) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(ready_.begin(), ready_.end(), [&](const Slot& s) { return s.batch.step == step; });
}

const Batch* Prefetcher::peek(int64_t step) const {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(ready_.begin(), ready_.end(), [&](const Slot& s) { return s.batch.step == step; });
  return at != ready_.end() && at->status.ok() ? &at->batch : nullptr;
}

absl::StatusOr<Batch> Prefetcher::take(int64_t step) {
  if (step >= end_step_) return absl::OutOfRangeError(cat("data: step ", step, " is not before the last, ", end_step_));
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  aim_at(step);
  changed_.wait(lock, [&] { return !ready_.empty(); });
  Slot slot = std::move(ready_.front());
  ready_.pop_front();
  if (!slot.status.ok()) next_step_ = step;
  stall_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const bool wakes = !hungry_ && ready_.size() <= depth_ / 2;
  hungry_ = hungry_ || wakes;
  lock.unlock();
  if (wakes) changed_.notify_all();
  if (!slot.status.ok()) return slot.status;
  return std::move(slot.batch);
}

void Prefetcher::give_back(Batch batch) {
  std::lock_guard lock(mutex_);
  if (spare_.size() < depth_) spare_.push_back(std::move(batch));
}

double Prefetcher::stall_seconds() const {
  std::lock_guard lock(mutex_);
  return stall_seconds_;
}

}  // namespace partita::runtime
