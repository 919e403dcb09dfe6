// GPU kernels on the host: the module that NVPTX would get, compiled for this processor, its thread numbers, barriers
// and shuffles lowered to calls, which are answered by tests/support/thread_block.h.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/llvm/object_code.h"
#include "runtime/kernel/kernel_module.h"
#include "runtime/program/program.h"

namespace partita {

// In which order blocks run, and the threads of a block between two points where they wait: results must not depend on
// it.
enum class SimtOrder { kForward, kBackward, kShuffled };

class SimtModule {
 public:
  explicit SimtModule(std::span<const NamedNest> nests);

  // Runs a kernel step on its operands: one whose code is for batched launches as a launch of its own. Shared memory
  // holds NaN when a block begins.
  void run(const runtime::Step& step, char* const* buffers, SimtOrder order) const;
  // Steps that are launched together, on their operands in turn.
  void run_batched(std::span<const runtime::Step* const> steps, std::span<std::byte* const> addresses,
                   SimtOrder order) const;
  // Blocks and threads of a kernel, whatever its arguments.
  void launch(const std::string& name, int64_t blocks, int64_t threads, char* const* arguments, SimtOrder order) const;

 private:
  std::unique_ptr<runtime::KernelModule> code_;
  std::map<std::string, int64_t> shared_bytes_;  // by kernel
};

}  // namespace partita
