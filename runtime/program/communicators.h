// NCCL's communicators of a program, which take device memory (DeviceProfile has how much).
#pragma once

#include <cstdint>

#include "runtime/program/program.h"

namespace partita::runtime {

// Those that a rank has to others (runtime/cuda/nccl_communicator.cc): one for each group that runs collectives, and
// one for each rank that it sends to or receives from, all of which take memory when they are first used.
struct Communicators {
  int64_t groups = 0, sends = 0, receives = 0;
};
Communicators communicators(const Program& program);

}  // namespace partita::runtime
