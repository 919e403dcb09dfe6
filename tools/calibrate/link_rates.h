// Collectives between the ranks of this host, fitted to the link that partitioner/collective_cost prices them by.
#pragma once

#include "partitioner/device_profile.h"
#include "tools/calibrate/rank_team.h"

namespace partita {

struct LinkFit {
  LinkProfile link;
  double error = 0;  // mean of |fitted / measured - 1| over kinds and sizes
  double noise = 0;
};

// Two ranks or more: all-reduce, all-gather, reduce-scatter and sends of 4 kB to 32 MB over threads of one process.
absl::StatusOr<LinkFit> measure_thread_links(const RankTeam& team);

}  // namespace partita
