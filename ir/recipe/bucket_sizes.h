// How many bytes of collectives are joined into one: in one place for the programs, the planner and its memory model.
#pragma once

#include <cstdint>
#include <vector>

namespace partita {

struct BucketSize {
  int64_t ranks = 0;  // of the groups; 0: of any others
  int64_t bytes = 0;
  bool operator==(const BucketSize&) const = default;
};

// Of groups, by how many ranks they have.
struct BucketSizes {
  static constexpr int64_t kLeast = int64_t{25} << 20;  // as torch's DistributedDataParallel
  static constexpr int64_t kShare = int64_t{1} << 20;   // of each rank: a ring moves so much from one to the next

  std::vector<BucketSize> sizes;  // ranks ascending, each once

  static BucketSizes all(int64_t bytes) { return {{{0, bytes}}}; }
  // Where nothing is said of such groups: kLeast, or kShare for each rank, which is more from 26 ranks on.
  int64_t bytes(int64_t ranks) const;
  // Says `bytes` of groups of `ranks`, or more where more was said.
  void raise(int64_t ranks, int64_t bytes);
  bool operator==(const BucketSizes&) const = default;
};

}  // namespace partita
