// What all numbers of a value say together of a factor that none of them shows.
#include "tools/compare/rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace partita {
namespace {

constexpr size_t kNumbers = 2000;
constexpr double kUlp = 0x1p-23, kUnit = 0x1p-24;  // at most half of it is lost by rounding once

struct Values {
  DrawnValue expected;
  std::vector<double> part;  // of each number, what one term of it is
  std::vector<bool> filled = std::vector<bool>(kNumbers, true);
};

// Sums of two terms.
Values values() {
  Values v{{Tensor::zeros({DType::kF32, {static_cast<int64_t>(kNumbers)}}), {}}, {}};
  std::mt19937 rng(3);
  std::uniform_real_distribution<double> draw(0.5, 1.5);
  for (double& x : v.expected.value.f) {
    v.part.push_back(draw(rng));
    x = draw(rng) + v.part.back();
  }
  return v;
}

// As 32 bits hold them, with the term off by a factor.
Tensor found(const Values& v, double off) {
  Tensor t = v.expected.value;
  for (size_t k = 0; k < t.f.size(); ++k) t.f[k] = static_cast<float>(t.f[k] + off * v.part[k]);
  return t;
}

TEST(Shift, OfOneUlpShowsInManyNumbers) {
  const Values v = values();
  const Shift none = shift_along(v.expected, found(v, 0), v.filled, kUnit, v.part);
  EXPECT_FALSE(none.beyond) << none.found << " " << none.usual;
  for (double off : {kUlp, -kUlp, 4 * kUlp}) {
    const Shift s = shift_along(v.expected, found(v, off), v.filled, kUnit, v.part);
    EXPECT_TRUE(s.beyond) << s.found << " " << s.usual;
    EXPECT_NEAR(s.found, off, 0.2 * kUlp);
  }
}

TEST(Shift, OfFewNumbersIsRounding) {
  Values v = values();
  std::fill(v.filled.begin() + 8, v.filled.end(), false);
  EXPECT_FALSE(shift_along(v.expected, found(v, kUlp), v.filled, kUnit, v.part).beyond);
}

// However many they are.
TEST(Shift, OfEqualNumbersIsThatOfOne) {
  Values v = values();
  for (size_t k = 0; k < kNumbers; ++k) v.expected.value.f[k] = 1.1, v.part[k] = 1;
  EXPECT_FALSE(shift_along(v.expected, found(v, kUlp), v.filled, kUnit, v.part).beyond);
}

TEST(Deviation, OfAllByOneFactorIsBeyondRounding) {
  const Values v = values();
  Tensor t = v.expected.value;
  for (double& x : t.f) x = static_cast<float>(x * (1 + kUlp));
  const Deviation d = deviation(v.expected, t, v.filled, kUnit);
  EXPECT_TRUE(d.beyond);
  EXPECT_TRUE(d.of_scale);
  EXPECT_FALSE(deviation(v.expected, found(v, 0), v.filled, kUnit).beyond);
}

}  // namespace
}  // namespace partita
