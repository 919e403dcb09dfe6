// Device memory that NCCL takes for a program's communicators, before a run can tell.
#pragma once

#include <cstdint>

#include "runtime/program.h"

namespace partita::runtime {

// Those that a rank has to others (runtime/cuda/nccl_communicator.cc): one for each group that runs collectives, and
// one for each rank that it sends to or receives from, all of which take memory when they are first used.
struct Communicators {
  int64_t groups = 0, sends = 0, receives = 0;
  // At least: the ring of a group receives from one rank and sends to one, as messages do.
  double bytes() const;
};
Communicators communicators(const Program& program);

}  // namespace partita::runtime
