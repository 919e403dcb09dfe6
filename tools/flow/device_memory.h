// Bytes that programs take on a device, as they were laid out.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace partita {

// Bytes of the device's memory that a rank takes beside the reserve: state, working memory, constants, inputs, the
// scores that cuDNN keeps for a gradient of attention, and those of NCCL's communicators that the reserve has no room
// for.
double device_bytes(const runtime::Program& p);

// Bytes of NCCL's communicators, at least; 0 for a host's program.
double communicator_bytes(const runtime::Program& p);

// Holds what programs take against what the plan leaves them: its memory model is that of common software, not a layout
// of this program. `room`: bytes of each stage, or the least for all; empty: any. ResourceExhausted.
absl::Status check_room(const std::vector<runtime::Program>& programs, const std::vector<double>& room);

}  // namespace partita
