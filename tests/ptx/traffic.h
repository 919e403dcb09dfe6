// What accesses of a warp cost in a GPU's memories.
#pragma once

#include <array>
#include <cstdint>

#include "tests/ptx/launch.h"
#include "tests/ptx/warp.h"

namespace partita::ptx {

// Sectors of 32 bytes that the lanes touch, each once.
uint64_t sectors(const std::array<uint64_t, kLanes>& addresses, uint32_t lanes);
// Counts them, and tells the launch's observer.
void count_global(Running& running, uint32_t block, const std::array<uint64_t, kLanes>& addresses, uint32_t lanes,
                  int bytes, bool reads);

// Passes through the 32 banks of 4 bytes: lanes that touch different words of a bank take turns. An access of 8 bytes
// takes two passes at least, by half a warp each, one of 16 bytes four; what is beyond those are conflicts.
void count_passes(Counters& counters, const std::array<uint64_t, kLanes>& addresses, uint32_t lanes, int bytes);

}  // namespace partita::ptx
