// How many processors this process may use.
#pragma once

#include <string>

namespace partita {

// Those that its affinity allows, at most as many whole ones as its control groups' quotas pay for (v1's and v2's; a
// container's limit), at least one. `cgroups`: where the system shows control groups; `own`: which are this process's.
int usable_processors(const std::string& cgroups = "/sys/fs/cgroup", const std::string& own = "/proc/self/cgroup");

}  // namespace partita
