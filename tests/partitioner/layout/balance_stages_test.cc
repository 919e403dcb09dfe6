#include "partitioner/layout/balance_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace partita {
namespace {

double slowest(const std::vector<CutPiece>& pieces, const std::vector<int>& stage, int stages) {
  std::vector<double> sum(static_cast<size_t>(stages), 0);
  for (size_t k = 0; k < pieces.size(); ++k) {
    sum[static_cast<size_t>(stage[k])] += pieces[k].work;
    if (k > 0 && stage[k] != stage[k - 1]) sum[static_cast<size_t>(stage[k])] += pieces[k].crossing;
  }
  return *std::max_element(sum.begin(), sum.end());
}

// The best over all ways to cut, by trying them all.
double best(const std::vector<CutPiece>& pieces, int stages) {
  double least = 1e300;
  std::vector<int> cut(pieces.size(), 0);  // 1: a new stage begins here
  std::fill(cut.end() - (stages - 1), cut.end(), 1);
  do {
    if (cut[0] != 0) continue;
    std::vector<int> stage(pieces.size(), 0);
    for (size_t k = 1; k < stage.size(); ++k) stage[k] = stage[k - 1] + cut[k];
    least = std::min(least, slowest(pieces, stage, stages));
  } while (std::next_permutation(cut.begin(), cut.end()));
  return least;
}

TEST(StageCuts_RandomChains, AreAsGoodAsTheBest) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<CutPiece> pieces(2 + rng() % 9);
    for (CutPiece& p : pieces) p = {static_cast<double>(rng() % 20), static_cast<double>(rng() % 8)};
    int stages = 1 + static_cast<int>(rng() % pieces.size());
    std::vector<int> stage = balanced_stages(pieces, stages);
    EXPECT_EQ(stage.front(), 0);
    EXPECT_EQ(stage.back(), stages - 1);
    for (size_t k = 1; k < stage.size(); ++k) EXPECT_TRUE(stage[k] == stage[k - 1] || stage[k] == stage[k - 1] + 1);
    EXPECT_DOUBLE_EQ(slowest(pieces, stage, stages), best(pieces, stages));
  }
}

TEST(StageCuts_EqualWork, CutsWhereLeastCrosses) {
  std::vector<CutPiece> pieces = {{4, 0}, {0, 9}, {0, 1}, {4, 9}};
  EXPECT_EQ(balanced_stages(pieces, 2), (std::vector<int>{0, 0, 1, 1}));
}

}  // namespace
}  // namespace partita
