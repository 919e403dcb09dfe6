// The generated kernels of a GPU program, as the compiler writes them in PTX, run by tests/ptx: each step on its
// operands and on no other memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/program/program.h"
#include "tests/ptx/launch.h"

namespace partita {

class PtxKernels {
 public:
  explicit PtxKernels(const runtime::Program& program);

  // Runs a kernel step on its operands: one whose code is for batched launches as a launch of its own.
  void run(const runtime::Step& step, char* const* buffers, ptx::Order order) const;
  // Steps that are launched together, on their operands in turn.
  void run_batched(std::span<const runtime::Step* const> steps, std::span<std::byte* const> addresses,
                   ptx::Order order) const;

 private:
  void launch(const runtime::Step& step, int64_t blocks, std::vector<void*> arguments,
              std::vector<ptx::GlobalMemory::Range> memory, ptx::Order order) const;

  std::unique_ptr<ptx::Module> module_;
};

}  // namespace partita
