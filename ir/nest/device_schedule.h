// How a nest is shared out among the blocks and threads of a GPU. The target-independent schedule (nest_schedule.h)
// chose loop order, lanes and units; this one chooses the shape of the kernel and its launch.
#pragma once

#include <string>

#include "ir/nest/loop_nest.h"

namespace partita {

enum class DeviceShape : uint8_t {
  kPoints,  // no reductions: a thread has a vector of points
  kTiles,   // the same, with loads transposed through shared memory: a block has kTileRows x kTileRows points
  kRows,    // a team of threads has a row
  kUnits,   // folds: a block has a unit, and each of its teams goes through rows of it one by one
};

struct DeviceSchedule {
  DeviceShape shape = DeviceShape::kPoints;
  int64_t blocks = 1;
  int threads = 32;   // of a block, a multiple of 32
  int team = 1;       // threads that share the columns of a row; a power of two
  int teams = 1;      // kUnits: of a block; what each has added up, the first one adds up in their order
  int lanes = 1;      // kRows: rows side by side, 32 where lanes run along rows (then team counts the threads of each)
  int vectors = 1;    // kPoints: that a thread has, `threads` apart; their loads are under way together
  int vector = 1;     // points that a thread has side by side along the last loop
  int held = 0;       // vectors of a row that each thread keeps in registers from pass to pass; 0: reads them again
  bool wide = false;  // 64-bit indices
};

// The nest as a GPU runs it: columns that were cut into rows for the sake of other processors are whole again.
LoopNest device_nest(LoopNest nest);
// `nest` from device_nest. Of a strict nest the order of its sums follows from column_order() and fold_order() alone
// (reduction_order.h).
DeviceSchedule device_schedule(const LoopNest& nest);

// Values that a thread of a unit adds up, of all folds together, and what each takes in shared memory.
int64_t folded_words(const LoopNest& nest, const DeviceSchedule& schedule);
int64_t folded_bytes(const LoopNest& nest);

// Kernels of nests with equal text here do each other's work in a batched launch (runtime/program/batched_launches.h):
// nests that are the same, and elementwise ones along memory that differ in their number of points alone.
std::string batching_key(const LoopNest& nest, const DeviceSchedule& schedule);

// Loads of a tiled nest that go through shared memory, as many as fit.
std::vector<int> turned_loads(const LoopNest& nest);

inline constexpr int kWarp = 32;
inline constexpr int64_t kSharedBytes = 48 << 10;  // that a block may have without asking

}  // namespace partita
