// Times work as the ranks of a layout do it: on all ranks of this host at once, each with its share of the cores, so
// that what they take from each other (memory bandwidth, clock, cores where there are more ranks than cores) is in it.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "runtime/collective.h"

namespace partita {

struct Timing {
  // Of one call: the shortest round, from the first rank's start to the last one's end. Other programs only add time.
  double seconds = 0;
  double noise = 0;  // median over shortest round, less 1
};

// One rank's work: called again and again. `communicator` is null for one rank.
using RankWork = std::function<absl::Status()>;
using PrepareRank = std::function<absl::StatusOr<RankWork>(int rank, runtime::Communicator* communicator)>;

struct RankTeam {
  int ranks = 1, threads = 1;    // threads of each rank
  double round_seconds = 0.003;  // a call that is shorter is repeated within a round
  int rounds = 100;              // at most; a timing ends when its three shortest rounds agree,
  double most_seconds = 0.7;     // or after so long, were there seven

  // This host's cores divided among its ranks, as `partita train` divides them.
  static RankTeam of(int ranks);
  // The first error of preparing or running ends it.
  absl::StatusOr<Timing> time(const PrepareRank& prepare) const;
};

}  // namespace partita
