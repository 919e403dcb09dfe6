// Collectives between ranks, fitted to the link that partitioner/planner/rates/collective_time prices them by.
#pragma once

#include <functional>
#include <vector>

#include "partitioner/planner/cluster/cluster.h"
#include "partitioner/planner/rates/collective_time.h"
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

// Ranks that are timed, two or more, and what joins them.
struct JoinedRanks {
  DeviceGroup group;  // what is looked for is the last level of its links
  RankAxis axis;      // the ranks of one communicator
  std::function<absl::StatusOr<Timing>(const PrepareRank&, const TimingLimits&)> time;
  TimingLimits limits;

  // Threads of one process.
  static JoinedRanks of(const RankTeam& team);
};

// Of all-reduce, all-gather and reduce-scatter among the ranks of an axis, and of sends from each to the next.
struct LinkSample {
  CollectiveKind kind;
  double bytes, seconds;
};

// Seconds that the sample would take were `link` the last level of the group's links.
double predicted(const DeviceGroup& group, RankAxis axis, const LinkProfile& link, const LinkSample& sample);
// The mean of |predicted / measured - 1|.
double mean_error(const DeviceGroup& group, RankAxis axis, const LinkProfile& link,
                  const std::vector<LinkSample>& samples);

// Bandwidth, latency and half_bytes of the last level of the group's links. `samples`: at least one; two sizes of a
// kind tell bandwidth from latency.
LinkProfile fit_link(const DeviceGroup& group, RankAxis axis, const std::vector<LinkSample>& samples);

// By all-reduce, all-gather, reduce-scatter and sends.
absl::StatusOr<LinkFit> measure_links(const JoinedRanks& ranks, const LinkSizes& sizes);
// The mean of |predicted / measured - 1| over those on ranks whose links are all known.
absl::StatusOr<double> prediction_error(const JoinedRanks& ranks, const LinkSizes& sizes);

}  // namespace partita
