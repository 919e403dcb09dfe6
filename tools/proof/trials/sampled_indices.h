// Some of many, the ends always.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace partita {

// `count` of 0 … of - 1 in order, all of them where there are no more: the first, the last, and others that `draw`
// says.
inline std::vector<int64_t> sampled_indices(int64_t of, int64_t count, std::mt19937_64& draw) {
  std::vector<int64_t> all(static_cast<size_t>(of));
  std::iota(all.begin(), all.end(), int64_t{0});
  if (count >= of) return all;
  std::vector<int64_t> some;
  if (count > 0) some.push_back(count == 1 && draw() % 2 == 0 ? of - 1 : 0);
  if (count > 1) some.push_back(of - 1);
  for (size_t k = 2; k < static_cast<size_t>(count); ++k) {
    // Those that were taken stand before place k - 1.
    const size_t at = k - 1 + draw() % (static_cast<size_t>(of) - k);
    std::swap(all[k - 1], all[at]);
    some.push_back(all[k - 1]);
  }
  std::sort(some.begin(), some.end());
  return some;
}

}  // namespace partita
