#include "runtime/data/order/permutation.h"

#include <bit>

#include "base/mix64.h"

namespace partita::runtime {

// A Feistel network permutes 2h-bit words for any round function (Luby and Rackoff 1988). Applied again while the word
// is outside [0, size) ("cycle walking", Black and Rogaway 2002), it permutes [0, size); 2^2h < 4 size, so under four
// times on average.
Permutation::Permutation(int64_t size, uint64_t seed, uint64_t epoch) : size_(static_cast<uint64_t>(size)) {
  const int bits = std::bit_width(size_ - 1);
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  for (int round = 0; round < kRounds; ++round) keys_[round] = mix64(mix64(seed, epoch), static_cast<uint64_t>(round));
}

int64_t Permutation::operator()(int64_t position) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t word = static_cast<uint64_t>(position);
  do {
    uint64_t left = word >> half_bits_, right = word & mask;
    for (uint64_t key : keys_) {
      const uint64_t next = left ^ (mix64(right + key) & mask);
      left = right;
      right = next;
    }
    word = left << half_bits_ | right;
  } while (word >= size_);
  return static_cast<int64_t>(word);
}

}  // namespace partita::runtime
