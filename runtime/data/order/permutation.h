// A random order of N samples that needs no table: any position is computed alone, so a run resumes anywhere at no cost
// and every rank finds its own samples without talking to another.
#pragma once

#include <array>
#include <cstdint>

namespace partita::runtime {

class Permutation {
 public:
  // Of [0, size), size >= 1; another for each seed and epoch.
  Permutation(int64_t size, uint64_t seed, uint64_t epoch);
  // A bijection of [0, size).
  int64_t operator()(int64_t position) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace partita::runtime
