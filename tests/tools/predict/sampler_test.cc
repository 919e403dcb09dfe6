#include "tools/predict/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace partita {
namespace {

constexpr int kDraws = 20000;

std::map<int64_t, double> shares(const std::vector<float>& scores, SamplerOptions options) {
  std::map<int64_t, double> shares;
  for (int k = 0; k < kDraws; ++k) shares[draw_token(scores, options, 3, static_cast<uint64_t>(k))] += 1.0 / kDraws;
  return shares;
}

TEST(Sampler, DrawsByTheSoftmaxOfScoresOverTemperature) {
  const std::vector<float> scores = {0.5f, -1, 2, 0};
  for (double temperature : {0.5, 1.0, 2.0}) {
    double total = 0;
    for (float s : scores) total += std::exp(s / temperature);
    const auto found = shares(scores, {.temperature = temperature});
    for (size_t k = 0; k < scores.size(); ++k)
      EXPECT_NEAR(found.at(static_cast<int64_t>(k)), std::exp(scores[k] / temperature) / total, 0.015)
          << "token " << k << ", temperature " << temperature;
  }
}

TEST(Sampler, KeepsTheLikeliestAlone) {
  const std::vector<float> scores = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  const auto two = shares(scores, {.top_k = 2});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two.at(1), 4.0 / 7, 0.015);
  const auto most = shares(scores, {.top_p = 0.69});  // 0.4 and 0.3 have more together
  EXPECT_EQ(most.size(), 2u);
  EXPECT_TRUE(most.count(1) && most.count(3));
  EXPECT_EQ(shares(scores, {.top_p = 0.71}).size(), 3u);
}

TEST(Sampler, WithoutTemperatureTheHighestIsTaken) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(draw_token(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, 0, 0), 1);
  EXPECT_EQ(draw_token(std::vector<float>{kNan, 1, -kInfinity}, {.temperature = 0}, 0, 0), 1);
  EXPECT_EQ(draw_token(std::vector<float>{kNan, kNan}, {}, 0, 0), 0);
}

TEST(Sampler, OtherRowsAndSeedsDrawOtherTokens) {
  const std::vector<float> even(1 << 12, 0.0f);
  const int64_t one = draw_token(even, {}, 0, 0);
  EXPECT_EQ(one, draw_token(even, {}, 0, 0));
  EXPECT_NE(one, draw_token(even, {}, 1, 0));
  EXPECT_NE(one, draw_token(even, {}, 0, 1));
  EXPECT_NE(one, draw_token(even, {.seed = 1}, 0, 0));
}

}  // namespace
}  // namespace partita
