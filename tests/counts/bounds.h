// Least times of a counted step on a device, unit by unit: the one that needs longest is the bound.
#pragma once

#include <string>

#include "partitioner/planner/cluster/device_profile.h"
#include "tests/counts/counted_program.h"

namespace partita::counts {

struct Bound {
  double seconds = 0;       // of one launch, on the unit that needs longest
  std::string unit;         // "memory", "issue", "fp32", …
  double least = 0;         // seconds that any kernel for it would need: its least bytes, or its arithmetic
  bool by_memory = false;   // whether those are its bytes
  double memory_bytes = 0;  // read and written in the device's memory
};

// Of memory, with what a cache keeps: sectors once a block, and once for all blocks where they fit into half of the
// cache or blocks beside each other share them.
double memory_bytes(const Row& row, const DeviceProfile& device);
Bound bound(const Row& row, const DeviceProfile& device);

// Over all launches of a step.
struct Sums {
  double bound = 0, least = 0;  // seconds
  double bytes = 0, least_bytes = 0;
  double ratio() const { return least > 0 ? bound / least : 1; }
};
// Of the kernels that are counted and bound by memory.
Sums memory_bound(const CountedProgram& program, const DeviceProfile& device);
Sums all(const CountedProgram& program, const DeviceProfile& device);

}  // namespace partita::counts
