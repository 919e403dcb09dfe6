// Signals as flags to look at: SIGTERM, which a scheduler sends before it takes the machine back, SIGINT, and SIGUSR1.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace partita::runtime {

// Blocks SIGUSR1 in this thread and in those that it starts from now on, and so in programs that they start: one that
// comes before there is a StopSignal waits for it, and where there never is one nothing happens. First thing in main().
void hold_save_signal();

class StopSignal {
 public:
  // Blocks the three in this thread and in those that it starts from now on; a thread of its own waits for them.
  // SIGTERM and SIGINT set stop(); a second one ends the process at once, with 128 + its number. SIGUSR1 sets save().
  // `told`: called in that thread for the first signal to stop, before the flag is set; it may end the process. Make
  // one before any other thread.
  explicit StopSignal(std::function<void(int signal)> told = nullptr);
  // SIGUSR1 stays blocked: a run that is over has nothing to save, and is not to be killed for the wish.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  const std::atomic<bool>* stop() const { return &stopped_; }
  // Whoever takes up a wish to save sets it back.
  std::atomic<bool>* save() { return &save_; }

 private:
  void wait();

  const std::function<void(int)> told_;
  std::atomic<bool> stopped_ = false, save_ = false, done_ = false;
  std::thread waiter_;
};

}  // namespace partita::runtime
