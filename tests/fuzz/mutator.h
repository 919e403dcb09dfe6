// Spoils inputs: bytes, numbers, pieces, and words of a format, from a seed.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>

namespace partita {

class Mutator {
 public:
  // `words`: texts that mean something in the format.
  Mutator(uint64_t seed, std::span<const std::string_view> words) : random_(seed), words_(words) {}

  // One of `corpus`, with one to eight changes, at most 64 KiB.
  std::string next(std::span<const std::string> corpus);

 private:
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  void change(std::string& text, std::span<const std::string> corpus);

  std::mt19937_64 random_;
  std::span<const std::string_view> words_;
};

}  // namespace partita
