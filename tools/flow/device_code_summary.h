// What is known of the GPU code of compiled programs.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/program/program.h"

namespace partita {

// What the assembler said of a program's generated GPU kernels, each counted once. Nothing for other targets.
struct DeviceCodeSummary {
  int64_t kernels = 0, most_registers = 0;  // registers of a thread
  int64_t spilling = 0, spilled_bytes = 0;  // kernels that spill, and how much a thread of theirs does
  // Kernel steps of a training step, and in how many launches they go; of the stage that has most.
  int64_t steps = 0, launches = 0;
  int64_t communicator_bytes = 0;       // of NCCL's communicators, at least
  int64_t attention_scratch_bytes = 0;  // of the scores that cuDNN keeps for a gradient of attention
};
DeviceCodeSummary device_code(const std::vector<runtime::Program>& programs);

}  // namespace partita
