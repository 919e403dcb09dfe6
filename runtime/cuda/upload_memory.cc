#include "runtime/cuda/upload_memory.h"

#include "base/status.h"
#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {
namespace {

// What is left free for libraries, which take memory when they need it.
constexpr int64_t kLeftFree = int64_t{512} << 20;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

absl::Status UploadMemory::open() {
  if (cudaError_t e = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); e != cudaSuccess)
    return cuda_error("cudaStreamCreate", e);
  for (cudaEvent_t* event : {&arrived_, &left_}) {
    if (cudaError_t e = cudaEventCreateWithFlags(event, cudaEventDisableTiming); e != cudaSuccess)
      return cuda_error("cudaEventCreate", e);
  }
  return absl::OkStatus();
}

void UploadMemory::close() {
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  for (cudaEvent_t event : {arrived_, left_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaFree(memory_);
}

absl::StatusOr<bool> UploadMemory::reserve(std::span<const int64_t> parts) {
  int64_t needed = 0;
  for (int64_t bytes : parts) needed += aligned(bytes);
  if (needed <= bytes_) return true;
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  void* made = nullptr;
  if (static_cast<int64_t>(free) < needed + kLeftFree ||
      cudaMalloc(&made, static_cast<size_t>(needed)) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  cudaError_t e = cudaStreamSynchronize(stream_);
  if (e == cudaSuccess) e = cudaEventSynchronize(left_);
  cudaFree(memory_);
  memory_ = static_cast<std::byte*>(made), bytes_ = needed;
  ++number_;  // of nothing: what was there is gone
  parts_.clear();
  return e == cudaSuccess ? absl::StatusOr<bool>(true) : cuda_error("the GPU", e);
}

absl::StatusOr<int64_t> UploadMemory::upload(std::span<const std::span<const std::byte>> parts, Staging& staging) {
  if (cudaError_t e = cudaStreamWaitEvent(stream_, left_, 0); e != cudaSuccess)
    return cuda_error("cudaStreamWaitEvent", e);
  parts_.clear();
  ++number_;
  int64_t end = 0;
  for (std::span<const std::byte> part : parts) {
    parts_.push_back({end, static_cast<int64_t>(part.size())});
    end = aligned(end + parts_.back().bytes);
    PARTITA_CHECK(end <= bytes_, "uploads have room");
    PARTITA_RETURN_IF_ERROR(staging.write(memory_ + parts_.back().begin, part, stream_));
  }
  if (cudaError_t e = cudaEventRecord(arrived_, stream_); e != cudaSuccess) return cuda_error("cudaEventRecord", e);
  return number_;
}

absl::Status UploadMemory::copy(std::span<std::byte* const> to, cudaStream_t main) {
  PARTITA_CHECK(to.size() == parts_.size(), "as many addresses as parts");
  cudaError_t e = cudaStreamWaitEvent(main, arrived_, 0);
  for (size_t k = 0; k < to.size() && e == cudaSuccess; ++k) {
    const auto bytes = static_cast<size_t>(parts_[k].bytes);
    if (bytes > 0) e = cudaMemcpyAsync(to[k], memory_ + parts_[k].begin, bytes, cudaMemcpyDeviceToDevice, main);
  }
  if (e == cudaSuccess) e = cudaEventRecord(left_, main);
  return e == cudaSuccess ? absl::OkStatus() : cuda_error("cudaMemcpy", e);
}

}  // namespace partita::runtime
