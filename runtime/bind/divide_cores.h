// Which cores each rank of a host is bound to.
//
// Every rank gets some of the cores that all of them may use, no two the same, within one NUMA node where there are
// enough ranks for that, so that what its threads touch first is memory near them; a rank with a GPU gets them of the
// cores near it:
//
//   2 nodes of 8 cores, 4 ranks      0-3, 4-7 | 8-11, 12-15
//   2 nodes of 8 cores, 3 ranks      0-3, 4-7 | 8-15
//   the same, of which 0 and 8-15    8-11, 12-15 (two ranks: 4 cores each, in place of 1 and 8)
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/bind/host_topology.h"

namespace partita::runtime {

// Processors, sorted, of each rank; none for a rank that is not bound: there are more ranks than cores. `allowed`:
// those that all ranks may use, sorted. `cards`: for each rank the address of its GPU, -1 without one; where the
// topology does not have it, it is near all cores.
std::vector<std::vector<int>> divide_cores(const HostTopology& topology, const std::vector<int>& allowed,
                                           const std::vector<int64_t>& cards);

// The NUMA nodes of processors, and how many cores they are of.
struct Extent {
  std::vector<int> nodes;  // sorted; those that are known
  int cores = 0;
};
Extent extent_of(const HostTopology& topology, const std::vector<int>& processors);

}  // namespace partita::runtime
