// How long the ranks' own work of a step takes, rank by rank: who holds the others up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

class RankTimes {
 public:
  // `stages`: which stage each rank belongs to; those of one stage do the same work and are held against each other.
  // `communicator` outlives it.
  RankTimes(Communicator& communicator, std::vector<int64_t> stages)
      : communicator_(communicator), stages_(std::move(stages)) {}

  struct Slow {
    int rank = 0;
    double ratio = 1;   // of its own work to that of the median rank of its stage
    int64_t steps = 0;  // for how many it has been slow by kSlow and kSlowSeconds or more
    bool tell = false;  // it has been so for kSteps now: once, until it is no more
  };
  struct Seen {
    std::vector<double> seconds;  // each rank's own of a step, on average since the last look
    Slow slowest;
  };
  static constexpr double kSlow = 1.2;
  static constexpr double kSlowSeconds = 1e-3;  // a step: what the system takes for a moment is no slow rank
  static constexpr int64_t kSteps = 20;

  // After a step: `own` is what it took without waiting for others, `whole` with it, in seconds. Every rank calls it
  // for each step; about once a second it is a collective, and tells what was seen.
  absl::StatusOr<const Seen*> add(double own, double whole);

 private:
  void judge(int64_t steps);

  Communicator& communicator_;
  const std::vector<int64_t> stages_;
  Seen seen_;
  double own_ = 0, whole_ = 0;        // since the last look
  int64_t steps_ = 0, interval_ = 1;  // likewise; and how many steps there are from one look to the next
  std::vector<int64_t> slow_for_;     // steps, by rank
  bool begun_ = false;                // the first step warms up, and counts nothing
};

}  // namespace partita::runtime
