// Memory of the device for what comes next, and a stream that fills it beside the device's main one. An upload begins
// once the main stream has passed its copies of the one before; those of its own are queued behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/staging.h"

namespace partita::runtime {

// What Device says of uploads.
class UploadMemory {
 public:
  absl::Status open();
  void close();  // waits for what is under way; the main stream is idle

  absl::StatusOr<bool> reserve(std::span<const int64_t> parts);
  absl::StatusOr<int64_t> upload(std::span<const std::span<const std::byte>> parts, Staging& staging);
  int64_t number() const { return number_; }
  absl::Status copy(std::span<std::byte* const> to, cudaStream_t main);
  int64_t bytes() const { return bytes_; }

 private:
  struct Part {
    int64_t begin = 0, bytes = 0;
  };
  cudaStream_t stream_ = nullptr;
  cudaEvent_t arrived_ = nullptr, left_ = nullptr;  // the last upload; the main stream's last copies
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0, number_ = 0;
  std::vector<Part> parts_;
};

}  // namespace partita::runtime
