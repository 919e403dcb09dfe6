// Work that is queued again and again, as CUDA graphs: one launch instead of one for each kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace partita::runtime {

class LaunchGraphs {
 public:
  // The first of `count` new numbers.
  size_t add(size_t count) {
    entries_.resize(entries_.size() + count);
    return entries_.size() - count;
  }
  // Queues what `issue` does on `stream`. The first time it is issued as it is, so that code is loaded and libraries
  // have made what they need; the second time it is captured. What cannot be captured is issued every time. `issue`
  // notes in `failure` what goes wrong without its knowing.
  absl::Status replay(size_t number, cudaStream_t stream, absl::FunctionRef<absl::Status()> issue,
                      absl::Status& failure);
  void clear();  // nothing of it runs any more

 private:
  enum class Stage { kFirst, kSecond, kKept, kIssued };
  struct Entry {
    Stage stage = Stage::kFirst;
    cudaGraphExec_t graph = nullptr;
  };
  absl::Status capture(Entry& entry, cudaStream_t stream, absl::FunctionRef<absl::Status()> issue,
                       absl::Status& failure);

  bool told_ = false;           // that there is one that cannot be captured
  std::vector<Entry> entries_;  // by number
};

}  // namespace partita::runtime
