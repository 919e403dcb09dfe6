// Time of collectives over the link levels of a group of devices, by the algorithms that NCCL has: ring, tree (of
// sums), parallel aggregated trees (PAT, of scatters and gathers with one rank a node), multicast in the switch (NVLS);
// all-to-all and send directly. What programs do in levels is several collectives.
#pragma once

#include <string_view>
#include <vector>

#include "partitioner/planner/cluster/cluster.h"

namespace partita {

enum class CollectiveKind { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kSend };

// Ranks 0, stride, 2 stride, … of a group: one communicator of a mesh axis.
struct RankAxis {
  int64_t size = 1, stride = 1;
};

struct CollectiveTime {
  double seconds = 0;
  std::string_view algorithm = "none";  // the fastest
};

// `bytes`: of the whole value on one rank (what all-gather gives, what reduce-scatter takes; all-to-all: what a rank
// sends). All communicators of the axis run at the same time; each device has its own share of every level.
CollectiveTime collective_time(const DeviceGroup& group, CollectiveKind kind, RankAxis axis, double bytes);

// Bytes of each of the messages that `bytes` in all are best cut into, at least `least`: of its doublings the one with
// the shortest sum of what all take and of what the last takes, which has nothing left to hide behind.
double best_message(const DeviceGroup& group, CollectiveKind kind, RankAxis axis, double bytes, double least);

// How many of the axis's ranks, or of groups of them, meet at each level of links that it crosses, innermost first.
std::vector<double> level_members(const DeviceGroup& group, RankAxis axis);

}  // namespace partita
