#include "ir/recipe/bucket_sizes.h"

#include <algorithm>

namespace partita {

int64_t BucketSizes::bytes(int64_t ranks) const {
  int64_t bytes = std::max(kLeast, kShare * ranks);
  for (const BucketSize& s : sizes) {
    if (s.ranks == 0) bytes = s.bytes;
    if (s.ranks == ranks) return s.bytes;
  }
  return bytes;
}

void BucketSizes::raise(int64_t ranks, int64_t bytes) {
  auto at = std::find_if(sizes.begin(), sizes.end(), [&](const BucketSize& s) { return s.ranks >= ranks; });
  if (at == sizes.end() || at->ranks != ranks) at = sizes.insert(at, {ranks, bytes});
  at->bytes = std::max(at->bytes, bytes);
}

}  // namespace partita
