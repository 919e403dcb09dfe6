// A hash of words.
#pragma once

#include <cstdint>

namespace partita {

// splitmix64's finalizer: a bijection of 64-bit words that mixes well.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}
// A word from two; order matters.
constexpr uint64_t mix64(uint64_t a, uint64_t b) { return mix64(mix64(a + 0x9E3779B97F4A7C15) + b); }

}  // namespace partita
