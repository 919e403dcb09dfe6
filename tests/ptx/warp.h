// Warps and blocks while a kernel runs: what instructions work on.
#pragma once

#include <deque>
#include <memory>

#include "tests/ptx/launch.h"
#include "tests/ptx/replay.h"

namespace partita::ptx {

class Block;

// A launch that is under way.
struct Running {
  const Module& module;
  const Program& program;
  Grid grid;
  std::vector<std::byte> parameters;
  GlobalMemory memory;
  LaunchOptions options;
  Counters counters;
  std::vector<uint32_t> ranges;  // by instruction: the range of memory that it found last
  absl::Status fault;
  Replay replay;
  std::byte poison{};     // what suspect reads find
  bool is_again = false;  // the launch is run again, to see whether they matter
};

struct AsyncCopy {
  uint64_t to = 0;  // in shared memory
  const void* from = nullptr;
  int bytes = 0, existing = 0;  // what does not exist is zero
};

class Warp {
 public:
  enum class State { kReady, kAtBarrier, kEnded };

  Warp(Block& block, uint32_t index, uint32_t threads);
  void begin();  // of a block
  // Goes on until it ends, or waits for others, or the launch has failed.
  void run();

  template <typename T>
  T* row(uint32_t at) {
    return reinterpret_cast<T*>(file_.data() + at);
  }
  uint32_t* mask(uint32_t at) { return row<uint32_t>(at); }

  Running& running();
  Block& block() { return block_; }
  uint32_t thread(int lane) const { return index_ * kLanes + static_cast<uint32_t>(lane); }
  Index3 thread_index(int lane) const;
  Moment moment(int lane) const;
  // Ends the launch.
  void fail(const Instruction& i, int lane, absl::StatusCode code, const std::string& what);

  std::byte* shared(const Instruction& i, int lane, uint64_t address, int bytes, int each, Access access);
  std::byte* global(const Instruction& i, int lane, uint64_t address, int bytes, int each, Access access);
  std::byte* local(const Instruction& i, int lane, uint64_t address, int bytes);

  void begin_copy(const Instruction& i, int lane, const AsyncCopy& copy);
  void commit_copies(uint32_t lanes);
  void wait_for_copies(uint32_t lanes, size_t groups);

  uint32_t index() const { return index_; }
  uint32_t live() const { return live_; }
  State state = State::kReady;
  WarpClock clock;

 private:
  bool choose();
  void advance();
  bool gather_lanes(const Instruction& i);
  void branch(const Instruction& i, uint32_t lanes);
  void end(const Instruction& i, uint32_t lanes);
  bool is_aligned(const Instruction& i, int lane, uint64_t address, int bytes);
  absl::Status failure(const Instruction& i, int lane, absl::StatusCode code, const std::string& what) const;
  // A race of writers ends the launch, one with a read is looked at when it has ended.
  void judge(const Instruction& i, int lane, const Shadow::Race& race, Shadow& shadow, int64_t at, uint64_t address,
             int bytes, int each, Access access, bool shared);
  std::byte* with_poison(std::byte* held, uint64_t address, int bytes, int each, int lane, bool shared);

  Block& block_;
  const std::vector<Instruction>& code_;
  uint32_t index_, all_;                    // all_: its lanes that exist
  uint32_t live_ = 0, waiting_ = 0;         // waiting_: for other lanes of the warp, at an instruction
  uint32_t group_ = 0, at_ = 0, next_ = 0;  // the lanes that run, where, and where the next others are
  std::array<uint32_t, kLanes> pc_{};       // of the others
  std::vector<std::byte> file_;
  std::vector<std::byte> local_;
  std::deque<std::array<std::byte, 16>> poisoned_;
  std::array<std::deque<std::vector<AsyncCopy>>, kLanes> copies_;  // the last group is not committed yet
};

class Block {
 public:
  explicit Block(Running& running);
  void run(uint32_t number);

  // A warp has come to a barrier; `count` threads are awaited, 0: all of the block. Waits unless it only arrives.
  void arrive(Warp& warp, const Instruction& i, uint32_t barrier, uint32_t count, bool waits);
  void end_warp_barrier(Warp& warp);

  Running& running;
  uint32_t number = 0;
  Index3 index;
  std::vector<std::byte> shared;
  std::unique_ptr<Shadow> shared_shadow;

 private:
  struct Barrier {
    uint32_t arrived = 0, expected = 0, warps = 0;
    std::array<uint32_t, 32> known{};
    uint32_t number = 0;  // of the instruction
  };
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<size_t> order_;
  std::array<Barrier, 16> barriers_;
};

std::vector<uint32_t> in_order(uint32_t count, Order order);

}  // namespace partita::ptx
