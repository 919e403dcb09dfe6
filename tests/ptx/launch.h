// A launch of a kernel: its blocks one after the other, in each the warps in turns, in a warp the lanes whose program
// counter is the lowest. Not quicker than it has to be: for a few blocks of a few warps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/ptx/memory.h"
#include "tests/ptx/program.h"

namespace partita::ptx {

struct Index3 {
  uint32_t x = 1, y = 1, z = 1;
  uint32_t count() const { return x * y * z; }
};
struct Grid {
  Index3 blocks, threads;
  int64_t shared_bytes = 0;  // beside the kernel's own
};

// Of blocks, and of the warps of a block between two barriers. Results must not depend on it.
enum class Order { kForward, kBackward, kShuffled };

// Is told of accesses to global memory: what the lanes of a warp read or write in one instruction.
class MemoryObserver {
 public:
  virtual ~MemoryObserver() = default;
  virtual void access(uint32_t block, const std::array<uint64_t, kLanes>& addresses, uint32_t lanes, int bytes,
                      bool reads) = 0;
};

struct LaunchOptions {
  Order order = Order::kForward;
  bool finds_races = true;
  bool counts_traffic = false;
  MemoryObserver* observer = nullptr;     // with counts_traffic
  std::span<const uint32_t> blocks = {};  // that run, in this order; none given: all
};

// What a launch did. Instructions are counted once a warp.
struct Counters {
  std::array<uint64_t, kKinds> instructions{};
  uint64_t lanes = 0;  // that were active in them, all together
  uint64_t branches = 0, divergent_branches = 0;
  uint64_t sectors_read = 0, sectors_written = 0;  // of global memory, 32 bytes, an instruction's each once
  uint64_t shared_passes = 0, bank_conflicts = 0;  // passes beyond those that an access of its width needs
  uint64_t local_accesses = 0;
  uint64_t total() const;
  void add(const Counters& other);
};

// `arguments`: a pointer to each parameter's value, as cuLaunchKernel takes them. Global memory holds what its
// addresses say: they are the host's. Shared memory holds NaN when a block begins.
// Fails with the kernel's name, the line and the thread: InvalidArgument for what a launch may not ask for, OutOfRange
// for an address without memory or with less alignment than the access needs, Aborted for a race, FailedPrecondition
// for what the ISA leaves undefined (a barrier that some threads miss, a shuffle with a lane that is not there).
absl::Status launch(const Module& module, const Program& program, const Grid& grid, void* const* arguments,
                    std::vector<GlobalMemory::Range> memory, const LaunchOptions& options = {},
                    Counters* counters = nullptr);
// The same with the parameters' bytes as they lie behind each other (Program::parameter_offsets).
std::vector<std::byte> pack_arguments(const Program& program, void* const* arguments);
absl::Status launch(const Module& module, const Program& program, const Grid& grid, std::vector<std::byte> parameters,
                    std::vector<GlobalMemory::Range> memory, const LaunchOptions& options = {},
                    Counters* counters = nullptr);

}  // namespace partita::ptx
