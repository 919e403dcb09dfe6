// Whether a run that has ended is started again, and when.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/record/diagnosis.h"
#include "runtime/record/flight_view.h"

namespace partita::runtime {

struct RestartLimits {
  int most = 0;       // in all
  int per_hour = 20;  // within any hour
};

// How an attempt ended, as far as is known.
struct AttemptEnd {
  absl::Status status;           // not Ok
  std::optional<int64_t> step;   // of training, at which the rank was that is the root cause; unset: before training
  bool killed = false;           // SIGKILL ended that rank
  double seconds = 0;            // that it lasted
  std::optional<int> rank = {};  // that one
  std::optional<int64_t> saved = {};  // steps of the newest checkpoint, where the ranks are out of sight
  std::string hung =
      {};  // where that rank did not end by itself: the operation that others waited for it in, or its own
};

// Adds what the flight records tell: the step, the rank that is the root cause, whether it hung.
void add_place(std::span<const FlightView> ranks, const Diagnosis& diagnosis, AttemptEnd& end);

class Restarts {
 public:
  // The same step, or a hang in the same operation at most kNear steps away, that ends so many attempts in a row is the
  // cause, and no host that was lost.
  static constexpr int kLoop = 3;
  static constexpr int64_t kNear = 4;   // what goes along with steps may hold them up a little later
  static constexpr double kWell = 600;  // seconds: an attempt that lasts as long went well

  explicit Restarts(const RestartLimits& limits) : limits_(limits) {}

  // `now`: seconds by a clock that never goes back. How many seconds to wait before the next attempt: none where the
  // last one got further than those before it, or lasted 10 minutes, else 1, 2, 4, … 60. Where there is no next one,
  // what the run ends with: the attempt's own status, where it is not worth a retry or no restart is left; Unavailable,
  // where there were too many within an hour; Internal, or ResourceExhausted of a killed rank, where attempts end at
  // one step.
  absl::StatusOr<double> next(const AttemptEnd& end, double now);
  int count() const { return count_; }
  // Whether this end is the last of so many hangs.
  bool hangs_again(const AttemptEnd& end) const {
    return hung_times(end) >= kLoop || (!end.hung.empty() && step_times(end) >= kLoop);
  }
  // The next attempt is under another plan: it is no longer the same that ends at the same step.
  void forget_step() { step_.reset(), at_same_step_ = 0, hung_.clear(), hung_in_a_row_ = 0; }

 private:
  // How often it has been so, with this end.
  int step_times(const AttemptEnd& end) const;
  int hung_times(const AttemptEnd& end) const;

  const RestartLimits limits_;
  int count_ = 0, in_vain_ = 0, at_same_step_ = 0;
  std::deque<double> times_;     // of the last hour's restarts
  std::optional<int64_t> step_;  // that ended the attempt before
  std::string hung_;             // and where it hung; empty: it did not
  int64_t hung_step_ = 0;        // the first time
  int hung_in_a_row_ = 0;
  int64_t furthest_ = -1;
};

// False as soon as `stopped` says so.
bool sleep_unless(const std::function<bool()>& stopped, double seconds);

}  // namespace partita::runtime
