// What the device's two back ends share: groups, tickets, and the one failure that ends them.
#pragma once

#include <map>
#include <mutex>

#include "base/cat.h"
#include "runtime/collective.h"
#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

// Elements of one of an operation's buffers of `count`, by the table in collective.h.
struct BufferCounts {
  int64_t input = 0, output = 0;
};
inline BufferCounts buffer_counts(CollectiveKind kind, int64_t count, int64_t group_size) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kPermute:
      return {count, count};
    case CollectiveKind::kReduceScatter:
      return {group_size * count, count};
    case CollectiveKind::kAllGather:
      return {count, group_size * count};
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kRecv:
      return {0, count};
    case CollectiveKind::kAllToAll:
      return {group_size * count, group_size * count};
    case CollectiveKind::kSend:
      return {count, 0};
    case CollectiveKind::kBarrier:
      break;
  }
  return {};
}

class DeviceCommunicator : public Communicator {
 public:
  DeviceCommunicator(CudaDevice& device, Communicator& control) : device_(device), control_(control) {}

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  void abort(std::string_view reason) override {
    fail(absl::UnavailableError(std::string(reason)));
    control_.abort(reason);
  }
  absl::Status failure() const override {
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return failure_;
    }
    return control_.failure();
  }

 protected:
  // The first one counts.
  void fail(absl::Status status) {
    std::lock_guard lock(mutex_);
    if (failure_.ok() && !status.ok()) failure_ = std::move(status);
  }

  CudaDevice& device_;
  Communicator& control_;
  mutable std::mutex mutex_;

 private:
  absl::Status failure_;
};

}  // namespace partita::runtime
