// Which processors this process may use, and how many.
#pragma once

#include <string>
#include <vector>

namespace partita {

// Those that the calling thread's affinity allows, sorted, numbered as Linux does; empty where it cannot be asked.
std::vector<int> allowed_processors();

// How many its affinity allows, at most as many whole ones as its control groups' quotas pay for (v1's and v2's; a
// container's limit), at least one. `cgroups`: where the system shows control groups; `own`: which are this process's.
int usable_processors(const std::string& cgroups = "/sys/fs/cgroup", const std::string& own = "/proc/self/cgroup");

}  // namespace partita
