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

// A thread of a launch at one point of its program. Its clock counts the times at which its warp was ordered with
// others, from 1 on; 0: never.
class Moment {
 public:
  static constexpr int kClockBits = 28, kThreadBits = 10, kBlockBits = 26;
  Moment() = default;
  Moment(uint32_t block, uint32_t thread, uint32_t clock)
      : bits_((uint64_t{block} << kThreadBits | thread) << kClockBits | clock) {}
  uint32_t block() const { return static_cast<uint32_t>(bits_ >> (kThreadBits + kClockBits)); }
  uint32_t thread() const { return static_cast<uint32_t>(bits_ >> kClockBits) & ((1 << kThreadBits) - 1); }
  uint32_t clock() const { return static_cast<uint32_t>(bits_) & ((1 << kClockBits) - 1); }
  bool is_never() const { return bits_ == 0; }
  bool is_of_thread(const Moment& o) const { return ((bits_ ^ o.bits_) >> kClockBits) == 0; }
  bool is_of_block(const Moment& o) const { return ((bits_ ^ o.bits_) >> (kThreadBits + kClockBits)) == 0; }
  bool operator==(const Moment&) const = default;

 private:
  uint64_t bits_ = 0;
};

// What the warps of a block know of each other: `known[v]` is the last clock of warp v whose accesses come before what
// this warp does now.
struct WarpClock {
  uint32_t warp = 0, now = 1;
  std::array<uint32_t, 32> known{};
  // Before what a thread of this warp does now?
  bool has_seen(const Moment& past, const Moment& now) const {
    return past.is_never() || past.is_of_thread(now) ||
           (past.is_of_block(now) && past.clock() <= known[past.thread() / 32]);
  }
};

enum class Access : uint8_t { kRead, kWrite, kAtomic };

class Shadow {
 public:
  // Of addresses from 0, or from less than 16, on.
  explicit Shadow(int64_t bytes) : pages_(static_cast<size_t>((bytes + 15 + kPageBytes) / kPageBytes)) {}

  // Which access before it an access races with.
  struct Race {
    Moment other;
    bool happened = false;
    bool of_writers = false;  // or with a copy in flight; else one of the two reads
  };
  // An aligned access of elements of `each` bytes.
  Race touch(int64_t at, int bytes, int each, Access access, const Moment& now, const WarpClock& clock) {
    Page& page = page_at(at, each);
    const int64_t within = at % kPageBytes;
    Cell* cell = &page.cells[static_cast<size_t>(within >> page.shift)];
    Race race;
    for (const Cell* end = cell + (bytes >> page.shift); cell != end; ++cell) {
      if (access == Access::kRead) {
        if (cell->in_flight || !clock.has_seen(cell->writer, now)) race = {cell->writer, true, cell->in_flight};
        if (!cell->reader.is_of_thread(now)) cell->other_reader = cell->reader;
        cell->reader = now;
      } else {
        write(*cell, access, now, clock, race);
      }
    }
    return race;
  }
  // A copy that arrives some time later: until it does, whoever touches its bytes races with it.
  Race begin_copy(int64_t at, int bytes, const Moment& now, const WarpClock& clock);
  void end_copy(int64_t at, int bytes, const Moment& now);
  void forget();

 private:
  static constexpr int kPageBytes = 512;
  struct Cell {
    Moment writer, reader, other_reader;
    bool by_atomic = false, in_flight = false;
  };
  struct Page {
    int shift = 2;  // log2 of the bytes of a cell: those of the smallest access so far
    std::vector<Cell> cells = std::vector<Cell>(kPageBytes / 4);
  };
  Page& page_at(int64_t at, int each) {
    std::unique_ptr<Page>& page = pages_[static_cast<size_t>(at / kPageBytes)];
    if (page == nullptr || (each >> page->shift) == 0) refine(page, each);
    return *page;
  }
  static void refine(std::unique_ptr<Page>& page, int bytes);
  static void write(Cell& cell, Access access, const Moment& now, const WarpClock& clock, Race& race);
  std::vector<std::unique_ptr<Page>> pages_;
};

// Memory of the device: ranges of the host's. Those that overlap are one; those side by side are not.
class GlobalMemory {
 public:
  struct Range {
    uint64_t begin = 0, bytes = 0;
  };
  explicit GlobalMemory(std::vector<Range> ranges, bool with_shadows = true);
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
