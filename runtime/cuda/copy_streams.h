// Copies between a device and the host's page-locked memory, on a stream for each direction, so that what goes up and
// what comes down travel at the same time, and beside kernels that have nothing to do with them. Each copy is queued
// behind what the device's main stream was given before it, and behind copies of the other direction that touch the
// same memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/event_pool.h"
#include "runtime/device/device.h"

namespace partita::runtime {

class CopyStreams {
 public:
  absl::Status open();
  void close();  // nothing is under way any more

  // A number that grows, of the copy. `main` is the device's stream, not behind the copies before.
  absl::StatusOr<int64_t> copy(std::byte* to, const std::byte* from, int64_t bytes, bool up, cudaStream_t main);
  // Queues what `main` is given from now on behind all copies so far.
  absl::Status join(cudaStream_t main);
  // The same for copies to memory that `use` has, and from memory that it writes, and those before them one way.
  absl::Status join(cudaStream_t main, const DeviceMemoryUse& use);
  bool is_joined() const { return under_way_.empty(); }

  // A number for what `main` was given so far and is behind, growing with those of copies.
  absl::StatusOr<int64_t> mark(cudaStream_t main);
  int64_t last() const { return last_; }
  // Waits for the copies and marks up to `number`.
  cudaError_t wait_for(int64_t number);
  // Everything is over.
  void reset();

 private:
  using Range = DeviceMemoryUse::Range;
  struct Copy {
    Range to, from;
    bool up = false;
    cudaEvent_t done = nullptr;
    int64_t number = 0;
  };
  struct Mark {
    int64_t number = 0;
    cudaEvent_t event = nullptr;
  };
  absl::StatusOr<cudaEvent_t> add_mark(cudaStream_t stream);
  absl::Status join_if(cudaStream_t main, absl::FunctionRef<bool(const Copy&)> is_needed);

  cudaStream_t up_ = nullptr, down_ = nullptr;
  cudaEvent_t behind_ = nullptr;  // the main stream, as it was before a copy
  std::vector<Copy> under_way_;   // that the main stream has not been put behind
  std::deque<Mark> marks_;        // nobody knows yet to have been passed; by number
  EventPool events_;
  int64_t last_ = 0;
};

}  // namespace partita::runtime
