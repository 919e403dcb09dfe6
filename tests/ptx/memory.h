// Memory that a launch may touch, and who touched it: two threads that touch the same bytes, one of them to write, with
// nothing between them that orders the two, race. Of bytes that many threads read, the last two readers are
// remembered; which others race with a writer, replay.h knows.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace partita::ptx {

// A thread of a launch at one point of its program. `clock` counts the times at which its warp was ordered with others.
struct Moment {
  uint32_t block = 0, thread = 0, clock = 0;
  bool operator==(const Moment&) const = default;
};

// What the warps of a block know of each other: `known[v]` is the last clock of warp v whose accesses come before what
// this warp does now.
struct WarpClock {
  uint32_t warp = 0, now = 1;
  std::array<uint32_t, 32> known{};
  // Before all that a thread does now, whose warp has this clock?
  bool has_seen(const Moment& past, uint32_t block, uint32_t thread) const {
    return past.clock == 0 || (past.block == block && (past.thread == thread || past.clock <= known[past.thread / 32]));
  }
};

enum class Access : uint8_t { kRead, kWrite, kAtomic };

class Shadow {
 public:
  explicit Shadow(int64_t bytes) : pages_(static_cast<size_t>((bytes + kPageBytes - 1) / kPageBytes)) {}

  // Which access before it an access races with.
  struct Race {
    Moment other;
    bool happened = false;
    bool of_writers = false;  // or with a copy in flight; else one of the two reads
  };
  Race touch(int64_t at, int bytes, Access access, uint32_t block, uint32_t thread, const WarpClock& clock);
  // A copy that arrives some time later: until it does, whoever touches its bytes races with it.
  Race begin_copy(int64_t at, int bytes, uint32_t block, uint32_t thread, const WarpClock& clock);
  void end_copy(int64_t at, int bytes, uint32_t block, uint32_t thread, const WarpClock& clock);
  void forget();

 private:
  static constexpr int kPageBytes = 512;
  struct Cell {
    Moment writer, reader, other_reader;
    bool by_atomic = false, in_flight = false;
  };
  struct Page {
    int unit = 4;  // bytes of a cell: that of the smallest access so far
    std::vector<Cell> cells = std::vector<Cell>(kPageBytes / 4);
  };
  Page& page_at(int64_t at, int bytes);
  std::vector<std::unique_ptr<Page>> pages_;
};

// Memory of the device: ranges of the host's. Those that overlap are one; those side by side are not.
class GlobalMemory {
 public:
  struct Range {
    uint64_t begin = 0, bytes = 0;
  };
  explicit GlobalMemory(std::vector<Range> ranges);
  static constexpr uint32_t kNowhere = ~uint32_t{0};
  // The number of the range that holds all of them; `hint` is tried first.
  uint32_t find(uint64_t address, uint64_t bytes, uint32_t hint) const {
    if (hint < ranges_.size() && holds(ranges_[hint], address, bytes)) return hint;
    return search(address, bytes);
  }
  const Range& range(uint32_t number) const { return ranges_[number]; }
  Shadow& shadow(uint32_t number) { return shadows_[number]; }
  void forget() {
    for (Shadow& s : shadows_) s.forget();
  }
  // Where an address lies that is in none of them.
  std::string describe(uint64_t address) const;

 private:
  static bool holds(const Range& r, uint64_t address, uint64_t bytes) {
    return address >= r.begin && address + bytes <= r.begin + r.bytes;
  }
  uint32_t search(uint64_t address, uint64_t bytes) const;
  std::vector<Range> ranges_;
  std::vector<Shadow> shadows_;
};

}  // namespace partita::ptx
