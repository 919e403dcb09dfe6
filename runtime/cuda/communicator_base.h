// What the device's two back ends share: groups, tickets, and the one failure that ends them.
#pragma once

#include <map>
#include <mutex>

#include "base/cat.h"
#include "runtime/communicate/collective.h"
#include "runtime/communicate/lost_ranks.h"
#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

class DeviceCommunicator : public Communicator {
 public:
  DeviceCommunicator(CudaDevice& device, Communicator& control) : device_(device), control_(control) {}

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  std::chrono::milliseconds timeout() const override { return control_.timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { control_.set_timeout(timeout); }
  void abort(std::string_view reason) override {
    fail(gave_up_error(reason));
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
