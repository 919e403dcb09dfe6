#include "runtime/data/order/permutation.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace partita::runtime {
namespace {

TEST(Permutation, IsABijectionForEverySize) {
  for (int64_t size = 1; size <= 300; ++size) {
    const Permutation order(size, 7, 3);
    std::vector<bool> seen(static_cast<size_t>(size), false);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t to = order(i);
      ASSERT_TRUE(to >= 0 && to < size && !seen[static_cast<size_t>(to)]) << size << " " << i;
      seen[static_cast<size_t>(to)] = true;
    }
  }
}

TEST(Permutation, DependsOnSeedAndEpochAlone) {
  const auto order = [](uint64_t seed, uint64_t epoch) {
    const Permutation p(1000, seed, epoch);
    std::vector<int64_t> out;
    for (int64_t i = 0; i < 1000; ++i) out.push_back(p(i));
    return out;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(0, 1), order(1, 0));
}

// Each position meets each value about equally often over many epochs: chi-square of a 16 x 16 table, 225 degrees of
// freedom.
TEST(Permutation, MixesSmallSizesToo) {
  constexpr int kSize = 16, kEpochs = 16000;
  std::vector<int> table(kSize * kSize, 0);
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation order(kSize, 5, epoch);
    for (int64_t i = 0; i < kSize; ++i) ++table[static_cast<size_t>(i * kSize + order(i))];
  }
  double chi = 0;
  const double expected = double{kEpochs} / kSize;
  for (int count : table) chi += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi, 320);
  EXPECT_GT(chi, 140);
}

TEST(Permutation, HandlesHugeSizes) {
  const int64_t size = (int64_t{1} << 61) + 12345;
  const Permutation order(size, 1, 1);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t to = order(size - 1 - i);
    EXPECT_TRUE(to >= 0 && to < size);
    seen.insert(to);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

}  // namespace
}  // namespace partita::runtime
