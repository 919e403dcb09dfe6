// Collectives between the ranks of this host, fitted to the link that partitioner/planner/rates/collective_time prices
// them by.
#pragma once

#include <vector>

#include "partitioner/planner/cluster/device_profile.h"
#include "tools/calibrate/rank_team.h"

namespace partita {

struct LinkFit {
  LinkProfile link;
  double error = 0;  // mean of |fitted / measured - 1| over kinds and sizes
  double noise = 0;
};

// What is measured: messages of so many bytes, and work between two collectives, a square product of that size.
struct LinkSizes {
  std::vector<int64_t> bytes = {4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20};
  int64_t product = 512;

  static LinkSizes of_gpus() { return {{64 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20}, 4096}; }
};

// Two ranks or more, threads of one process: all-reduce, all-gather, reduce-scatter and sends.
absl::StatusOr<LinkFit> measure_links(const RankTeam& team, const LinkSizes& sizes);

}  // namespace partita
