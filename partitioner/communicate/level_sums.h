// All-reduces over ranks of several nodes in levels: each rank of a node sums its own part over the nodes, so that all
// network cards work at once, on a share of the bytes, and a ring between nodes has fewer ranks.
#pragma once

#include <vector>

#include "partitioner/localize/local_program.h"

namespace partita {

inline constexpr int64_t kLeastLevelBytes = 4096;  // host ranks send less than that in one message, not in two

// An all-reduce of gradients over `far` mesh axes and others (the near ones) becomes a reduce-scatter over the near
// axes, an all-reduce of what that leaves over the far ones and an all-gather over the near ones. Those of less than
// `least` bytes, of which latencies are most, and those that the near ranks do not divide stay as they are. What ZeRO
// stores in parts is scattered and gathered so by how it lies (partitioner/shard/place_tensors.h).
void sum_in_levels(LocalProgram& program, const std::vector<int>& far, int64_t least = kLeastLevelBytes);

}  // namespace partita
