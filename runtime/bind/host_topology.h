// A host's cores, NUMA nodes and cards, as far as ranks are bound by them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace partita::runtime {

// Processors are numbered as Linux does: what its affinity masks are of. Lists of them are sorted.
struct HostTopology {
  struct Core {
    std::vector<int> processors;  // its hardware threads
    int node = -1;                // NUMA; -1: not known
  };
  struct Card {
    int64_t address = -1;         // card_address()
    std::vector<int> processors;  // those that are near it
  };
  std::vector<Core> cores;  // those that share a NUMA node or a cache beside each other
  std::vector<Card> cards;  // GPUs
};

// Of a card on PCI.
constexpr int64_t card_address(int64_t domain, int64_t bus, int64_t device) {
  return domain << 16 | bus << 8 | device << 3;
}

// By this host's hwloc, loaded when it is first needed; cards, if they are asked for. FailedPrecondition where there is
// no hwloc, or where it cannot tell.
absl::StatusOr<HostTopology> read_topology(bool cards);

}  // namespace partita::runtime
