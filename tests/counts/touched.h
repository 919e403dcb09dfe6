// Which sectors of memory the blocks of a launch read and write, by operand. A few of the blocks run; each stands for
// `weight` of them.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tests/ptx/launch.h"

namespace partita::counts {

inline constexpr double kSector = 32;  // bytes

// Memory that a step may touch.
struct Extent {
  uint64_t begin = 0, bytes = 0;
  bool is_input = false, is_output = false;  // of the step; scratch memory and tables are neither
};

// What blocks did to an extent, all of them together. Sectors are counted once an instruction of a warp.
struct Use {
  double issued = 0;     // sectors
  double of_blocks = 0;  // sectors, once a block
  double far = 0;        // sectors that a block comes back to when a cache of one processor may have lost them
  double bytes = 0;      // once a block
  void add(const Use& other);
};
struct ExtentUse {
  Extent extent;
  Use reads, writes;
  bool neighbours_share = false;  // sectors that one block reads, the block beside it reads
  bool is_shared = false;         // by many blocks
};

class Touched final : public ptx::MemoryObserver {
 public:
  // Bytes that a block touches before what it touched first may be gone from its processor's cache.
  Touched(std::vector<Extent> extents, int64_t near_bytes);
  // What each of the blocks of a launch stands for that run next.
  void weigh(std::unordered_map<uint32_t, double> weights);
  void access(uint32_t block, const std::array<uint64_t, ptx::kLanes>& addresses, uint32_t lanes, int bytes,
              bool reads) override;
  void finish();  // of a launch
  // Memory set or copied by the driver.
  void stream(uint64_t begin, uint64_t bytes, bool reads);
  std::vector<ExtentUse> uses() const { return uses_; }
  double block_sectors() const { return blocks_ == 0 ? 0 : touched_ / blocks_; }  // of a block, on average

 private:
  struct Sector {
    uint32_t read = 0, written = 0;  // its bytes
    uint32_t reads = 0, writes = 0, far_reads = 0;
    int64_t last = 0;
  };
  size_t find(uint64_t address) const;
  void end_block();

  std::vector<ExtentUse> uses_;  // by address; the last one is all other memory
  int64_t near_;
  std::unordered_map<uint32_t, double> weights_;
  int64_t block_ = -1, now_ = 0;
  std::unordered_map<uint64_t, Sector> of_block_;
  std::unordered_map<uint64_t, std::pair<int64_t, uint32_t>> readers_;  // the last block, and how many read it
  std::vector<double> beside_, shared_, read_by_neighbours_;
  double touched_ = 0, blocks_ = 0;
};

}  // namespace partita::counts
