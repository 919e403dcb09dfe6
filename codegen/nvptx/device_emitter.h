// A nest as an NVPTX kernel: one pointer to global memory for each operand, launched with the schedule's blocks and
// threads. Everything is in LLVM IR and five of NVVM's intrinsics: thread and block number, two barriers, a shuffle.
//
// Sums go through threads and shuffles in a fixed order, so a result depends on the nest alone.
//
// A batched kernel does the work of several launches: its one pointer is to a table
// (runtime/program/batched_launches.h) in which each block finds whose it is.
#pragma once

#include <string>

#include "ir/nest/device_schedule.h"
#include "ir/nest/loop_nest.h"
#include "llvm/IR/Module.h"

namespace partita {

inline constexpr unsigned kGlobalMemory = 1, kSharedMemory = 3;  // address spaces

// `nest` from device_nest, `schedule` its own.
llvm::Function* emit_device_nest(llvm::Module& module, const LoopNest& nest, const DeviceSchedule& schedule,
                                 const std::string& name, bool batched = false);

}  // namespace partita
