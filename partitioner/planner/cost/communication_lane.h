// A pass of a stage's units beside the collectives that its program starts: one after the other, each behind all that
// were started before it. Compute waits for what it needs, and what ends late holds up what comes behind. Micro-batches
// that take turns (overlap_micro_batches.h) do so where one would wait within a unit.
#pragma once

#include <cstdint>
#include <vector>

namespace partita {

// Times are seconds.
struct LaneUnit {
  double compute = 0;
  double gather = 0, gathered_bytes = 0;  // of its parameters, before it
  double scattered_bytes = 0;             // of gradients, which are there evenly over its compute
  // Collectives spread evenly over it, which its compute waits for at once, and what all of them take.
  int64_t sums = 0;
  double sum_seconds = 0;
};

struct LanePass {
  std::vector<LaneUnit> units;  // in the order in which they are computed
  int64_t prefetched = 1;       // Layout::prefetch_blocks
  double bucket_bytes = 1;      // of gradients that are scattered together
  double scatter_rate = 0;      // seconds a byte
  int64_t overlapped = 1;       // micro-batches that take turns, each with these units
};

// From the start of the pass of all of its micro-batches until nothing of it computes or travels any more.
double lane_seconds(const LanePass& pass);

}  // namespace partita
