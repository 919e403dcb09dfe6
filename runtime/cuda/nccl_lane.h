// Operations that run one after the other, on a stream of their own: each behind what the device was given before it.
// A thread issues them, so that a call of NCCL's that takes its time (the first message between two ranks connects
// them) holds up neither the rank nor other lanes. The communicators belong to that thread until it has stopped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/event_pool.h"
#include "runtime/cuda/nccl_link.h"

namespace partita::runtime {

class NcclLane {
 public:
  // Called from the lane's thread: the communicator for an operation.
  using Find = std::function<absl::StatusOr<NcclLink*>(const CollectiveOp&)>;
  // Also from there, every 50 ms and when asked: what is wrong with the lane's communicators.
  using Look = std::function<absl::Status()>;
  // `fail` is told what goes wrong; what was given to the lane by then is never issued. `sums`: of a lane that adds up
  // in order.
  NcclLane(CudaDevice& device, Find find, Look look, std::function<void(absl::Status)> fail,
           const OrderedSums* sums = nullptr);
  ~NcclLane();
  absl::Status open();

  // Its number in the lane. From the rank's thread, as wait() is.
  absl::StatusOr<uint64_t> push(CollectiveOp op);
  // Lets the device's stream go on behind the operation.
  absl::Status wait(uint64_t number);
  bool is_over(uint64_t number);
  // Returns once the communicators have been looked at, or the lane's thread is held up by one of them.
  void look();
  // The operation that has not ended though its turn came longer ago than this.
  std::optional<CollectiveOp> late(std::chrono::milliseconds limit);

  // Nothing more is issued; returns once nothing is.
  void stop();
  // Once stopped: waits for the stream.
  void drain();

 private:
  struct Job {
    uint64_t number = 0;
    CollectiveOp op;
    cudaEvent_t ready = nullptr, done = nullptr;  // what it waits for was passed; it was
    bool issued = false;
    std::optional<std::chrono::steady_clock::time_point> turn;  // when it was first seen to be at its turn
  };
  void work();
  absl::Status issue(const Job& job);
  void give_back(const Job& job);
  void retire();  // those at the front that are over
  Job* find(uint64_t number);

  CudaDevice& device_;
  Find find_;
  Look look_;
  std::function<void(absl::Status)> fail_;
  const OrderedSums* sums_;
  cudaStream_t stream_ = nullptr;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  size_t issued_ = 0;  // of jobs_
  uint64_t last_ = 0;
  uint64_t asked_ = 0, answered_ = 0;  // calls of look()
  EventPool events_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace partita::runtime
