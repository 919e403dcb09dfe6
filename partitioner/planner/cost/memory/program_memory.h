// Memory of a rank that runs a program compiled here, before one is allocated: what such programs hold in f32 and in
// the compute precision, and what their backward parts read. Published software holds other things (memory_model.h).
#pragma once

#include "absl/status/status.h"
#include "partitioner/planner/cost/memory/memory_model.h"

namespace partita {

// Takes what the units of `program`, the same model as it is compiled, keep for backward and hold of frozen weights
// into `workload`'s. Internal where their units are not the same. `mode`: what it computes again of all blocks.
absl::Status take_kept(Workload& workload, const Workload& program, RecomputeMode mode);

// Bytes that one micro-batch keeps for one unit's backward on a rank or its host, as if nothing were computed again
// where that is not known of a mode.
double kept_bytes(const UnitWork& unit, const Problem& problem, const Layout& layout, RecomputeMode mode);

// As stage_memory.
MemoryUse program_memory(const Problem& problem, const DeviceProfile& device, const Layout& layout,
                         const StageUnits& stage, double in_flight);

}  // namespace partita
