// A step as a rank runs it: its kernel is found, its operands are addresses, its group and peers are numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/communicate/collective.h"
#include "runtime/kernel/kernel.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// One of the buffers of a collective step.
struct CollectivePiece {
  int input = -1, output = -1;  // operands, -1 for none
  int64_t count = 0, bytes = 0;
};

inline constexpr size_t kNoUses = ~size_t{0};

// Buffers and tickets are numbers into the executor's lists.
struct BoundStep {
  const Step* step = nullptr;
  KernelFunction function = nullptr;
  std::unique_ptr<LibraryKernel> library;
  size_t buffers = 0;       // its first one, in slot 0
  size_t slot_buffers = 0;  // from one slot's buffers to the next; 0 when they are the same in every slot
  int64_t bytes = 0;        // copy: size; kernel: see `parallel`
  bool parallel = false;
  bool on_host = false;  // of a device's program
  CollectiveOp collective;
  std::vector<CollectivePiece> pieces;  // what a collective moves, at least one
  bool alone = false;                   // a collective of one rank: a copy
  bool is_root = false;
  // Of a device's batched launch: its first step has the kernels, by slot, and all of its steps; the others have
  // nothing to do.
  std::vector<std::unique_ptr<LibraryKernel>> batched;
  std::vector<const Step*> batched_steps;
  bool is_batched = false;
  size_t run = 0;  // so many from here on are one run of work on a device, numbered from `replay` by slot
  size_t replay = 0;
  // Of a run's first step and of a collective, where copies may go on beside them: the executor's uses from here on,
  // by slot.
  size_t uses = kNoUses;
  size_t ticket = 0;    // in slot 0
  int64_t outbox = -1;  // its number
};

}  // namespace partita::runtime
