// SIGTERM as a flag to look at: what a scheduler sends before it takes the machine back.
#pragma once

#include <atomic>
#include <thread>

namespace partita::runtime {

class StopSignal {
 public:
  // Blocks SIGTERM in this thread and in those that it starts from now on; a thread of its own waits for it. A second
  // one ends the process at once. Make it before any other thread.
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  const std::atomic<bool>* flag() const { return &stopped_; }

 private:
  std::atomic<bool> stopped_ = false, done_ = false;
  std::thread waiter_;
};

}  // namespace partita::runtime
