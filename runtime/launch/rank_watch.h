// Looks after a rank from a thread of its own: that each phase ends in time, that the other ranks of this host live,
// and that this one ends soon after the run has failed.
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "runtime/communicate/collective.h"
#include "runtime/launch/timeouts.h"
#include "runtime/record/diagnosis.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {

class RankWatch {
 public:
  // `give_up`: called, in the watch's thread, where the rank has not come back 1.5 s after the run failed (it computes,
  // or hangs); it may end the process. Null: nothing is done then. `recorder` outlives this.
  RankWatch(FlightRecorder& recorder, const Timeouts& timeouts, std::function<void(const absl::Status&)> give_up = {});
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  FlightRecorder& recorder() { return recorder_; }
  // From here on this process gets SIGTERM when its parent has ended. (The kernel's own way goes by the parent's
  // thread.)
  void end_with_parent() { parent_ = ::getppid(); }

  // Collective (null: one rank, nothing to do): finds the records of the ranks on this host. From here to leave() the
  // communicator is looked at, and told of the limits. The calling thread is the rank's.
  absl::Status join(Communicator* communicator);
  void leave();

  // From here on these limits hold.
  void limit(const Timeouts& timeouts);
  void enter(Phase phase, int64_t training_step);
  void step_took(double seconds);

  // What this watch ended the run for; Ok where it did not.
  absl::Status verdict() const;
  std::string where() const { return own_ != nullptr ? own_->view().where() : ""; }
  // A rank of this host whose process has ended without a word.
  std::optional<int> lost_peer() const;
  // Why the run ended, as far as the records of this host tell.
  Diagnosis diagnose() const;
  // The rank, of those of this host that may still speak, that tells the root cause.
  bool tells_root() const;

 private:
  void watch();
  void look(int64_t now);
  std::optional<int> dead_peer() const;
  void look_at_peers(int64_t now);
  void look_at_time(int64_t now);
  void warn(int64_t since, std::chrono::milliseconds limit, int64_t now, const std::string& what);
  void end_run(absl::Status why);
  int64_t limit_of(Phase phase) const;

  FlightRecorder& recorder_;
  const std::unique_ptr<FlightReader> own_;
  const std::function<void(const absl::Status&)> give_up_;
  mutable std::mutex mutex_;  // of all that follows but the flag and the thread
  TimeLimits limits_;
  Communicator* communicator_ = nullptr;
  std::vector<std::unique_ptr<FlightReader>> peers_;
  absl::Status verdict_;
  bool over_ = false;   // the rank has come back
  int64_t failed_ = 0;  // since when the run has failed
  int64_t warned_ = 0;  // of what began then
  std::atomic<bool> done_ = false;
  std::atomic<pid_t> parent_ = 0;  // 0: not looked at
  std::thread thread_;
};

}  // namespace partita::runtime
