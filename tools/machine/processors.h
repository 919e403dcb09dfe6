// The processor cores of this machine.
#pragma once

#include <string>

namespace partita {

struct Processors {
  int cores = 0, packages = 0, numa_nodes = 0;
};

// Those that this process may run on, as `system` (/sys/devices/system) tells. Where it tells nothing, as in containers
// without it, one core for each thread that may run, in one package and one node.
Processors count_processors(const std::string& system);

}  // namespace partita
