#include "runtime/cuda/nccl_lane.h"

#include <utility>

#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

constexpr std::chrono::milliseconds kLook{50};

}  // namespace

NcclLane::NcclLane(CudaDevice& device, Find find, Look look, std::function<void(absl::Status)> fail,
                   const OrderedSums* sums)
    : device_(device), find_(std::move(find)), look_(std::move(look)), fail_(std::move(fail)), sums_(sums) {}

absl::Status NcclLane::open() {
  if (cudaError_t e = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); e != cudaSuccess)
    return cuda_error("cudaStreamCreate", e);
  thread_ = std::thread([this] { work(); });
  return absl::OkStatus();
}

NcclLane::~NcclLane() {
  stop();
  for (const Job& job : jobs_) give_back(job);
  events_.close();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void NcclLane::stop() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NcclLane::look() {
  std::unique_lock lock(mutex_);
  const uint64_t question = ++asked_;
  changed_.notify_all();
  changed_.wait_for(lock, kLook, [&] { return answered_ >= question || stops_; });
}

void NcclLane::drain() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
}

void NcclLane::give_back(const Job& job) {
  events_.give_back(job.ready);
  events_.give_back(job.done);
}

void NcclLane::retire() {
  while (issued_ > 0 && cudaEventQuery(jobs_.front().done) == cudaSuccess) {
    give_back(jobs_.front());
    jobs_.pop_front();
    --issued_;
  }
}

NcclLane::Job* NcclLane::find(uint64_t number) {
  if (jobs_.empty() || number < jobs_.front().number) return nullptr;
  return &jobs_[number - jobs_.front().number];
}

absl::StatusOr<uint64_t> NcclLane::push(CollectiveOp op) {
  std::lock_guard lock(mutex_);
  retire();
  Job job{.number = ++last_, .op = std::move(op)};
  PARTITA_ASSIGN_OR_RETURN(job.ready, events_.take());
  PARTITA_ASSIGN_OR_RETURN(job.done, events_.take());
  if (cudaError_t e = cudaEventRecord(job.ready, device_.stream()); e != cudaSuccess)
    return cuda_error("cudaEventRecord", e);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return last_;
}

absl::Status NcclLane::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  Job* job = nullptr;
  changed_.wait(lock, [&] {
    job = find(number);
    return job == nullptr || job->issued || stops_;
  });
  if (job == nullptr) return absl::OkStatus();  // over already
  if (!job->issued) return absl::UnavailableError(cat(describe(job->op), " was given up"));
  const cudaError_t e = cudaStreamWaitEvent(device_.stream(), job->done, 0);
  return e == cudaSuccess ? absl::OkStatus() : cuda_error("cudaStreamWaitEvent", e);
}

bool NcclLane::is_over(uint64_t number) {
  std::lock_guard lock(mutex_);
  retire();
  return find(number) == nullptr;
}

std::optional<CollectiveOp> NcclLane::late(std::chrono::milliseconds limit) {
  std::lock_guard lock(mutex_);
  retire();
  if (jobs_.empty() || cudaEventQuery(jobs_.front().ready) != cudaSuccess) return std::nullopt;
  const auto now = std::chrono::steady_clock::now();
  Job& job = jobs_.front();
  if (!job.turn) job.turn = now;
  return now - *job.turn > limit ? std::optional(job.op) : std::nullopt;
}

absl::Status NcclLane::issue(const Job& job) {
  PARTITA_ASSIGN_OR_RETURN(NcclLink * link, find_(job.op));
  cudaError_t e = cudaStreamWaitEvent(stream_, job.ready, 0);
  if (e != cudaSuccess) return cuda_error("cudaStreamWaitEvent", e);
  PARTITA_RETURN_IF_ERROR(link->issue(job.op, stream_, sums_));
  e = cudaEventRecord(job.done, stream_);
  return e == cudaSuccess ? absl::OkStatus() : cuda_error("cudaEventRecord", e);
}

void NcclLane::work() {
  using Clock = std::chrono::steady_clock;
  cudaSetDevice(device_.ordinal());
  Clock::time_point next = Clock::now() + kLook;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait_until(lock, next, [&] { return stops_ || issued_ < jobs_.size() || answered_ < asked_; });
    if (stops_) return;
    absl::Status status;
    const uint64_t asked = asked_;
    if (answered_ < asked || Clock::now() >= next) {
      lock.unlock();
      status = look_();
      next = Clock::now() + kLook;
      if (!status.ok()) fail_(status);
      lock.lock();
      answered_ = asked;
    }
    if (status.ok() && issued_ < jobs_.size()) {
      const Job job = jobs_[issued_];  // those before it alone can leave meanwhile
      lock.unlock();
      status = issue(job);
      if (!status.ok()) fail_(with_context(status, describe(job.op)));
      lock.lock();
      if (status.ok()) {
        find(job.number)->issued = true;
        ++issued_;
      }
    }
    stops_ = stops_ || !status.ok();
    changed_.notify_all();
    if (stops_) return;
  }
}

}  // namespace partita::runtime
