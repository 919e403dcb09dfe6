// Times work as the ranks of a layout do it: on all ranks of this machine at once, each with its share of the cores or
// a GPU of its own, so that what they take from each other (memory bandwidth, clock, power, cores where there are more
// ranks than cores) is in it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/device/device.h"

namespace partita {

struct Timing {
  // Of one call: the shortest round, from the first rank's start to the last one's end. Other programs only add time.
  double seconds = 0;
  double noise = 0;  // median over shortest round, less 1
};

// How long a timing goes on.
struct TimingLimits {
  double round_seconds = 0.003;  // a call that is shorter is repeated within a round
  int rounds = 100;              // at most; a timing ends when its three shortest rounds agree,
  double most_seconds = 0.7;     // or after so long, were there kFewestRounds
};
inline constexpr size_t kFewestRounds = 7;
// Whether the shortest rounds are so near each other that a longer wait would not find a much shorter one.
bool settled(std::vector<double> rounds);
// Whether there were so many that a timing may end at its limit.
bool may_end(const std::vector<double>& rounds);
Timing timing_of(std::vector<double> rounds);

// What a rank has while it is timed.
struct RankPlace {
  int rank = 0, threads = 1;                      // of its group
  runtime::Communicator* communicator = nullptr;  // null for one rank; of the device's memory where there is a device
  runtime::Device* device = nullptr;              // null: the rank works on the host
  const runtime::Program* program = nullptr;      // what the device was opened for
  runtime::GroupId group = runtime::kWorldGroup;  // the communicator's that it works with
};

// One rank's work: called again and again. What it puts on a device's queue is waited for at the end of a round.
using RankWork = std::function<absl::Status()>;
using PrepareRank = std::function<absl::StatusOr<RankWork>(const RankPlace&)>;
using OpenDevice =
    std::function<absl::StatusOr<std::unique_ptr<runtime::Device>>(const runtime::Program& program, int rank)>;

struct RankTeam : TimingLimits {
  int ranks = 1, threads = 1;  // threads of each rank

  std::shared_ptr<const runtime::Program> program;  // of a GPU's target: each rank opens a device for it
  OpenDevice open_device = runtime::open_device;

  // This host's cores divided among its ranks, as `partita train` divides them.
  static RankTeam of(int ranks);
  // Ranks on one GPU each, of `target` "cuda:sm_90".
  static RankTeam on_gpus(int ranks, const std::string& target);
  // The first error of preparing or running ends it.
  absl::StatusOr<Timing> time(const PrepareRank& prepare) const;
};

}  // namespace partita
