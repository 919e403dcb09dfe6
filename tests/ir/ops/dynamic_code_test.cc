// The dynamic map of 8 bits, against bitsandbytes' create_dynamic_map and a search for the nearest of its numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

// create_dynamic_map(signed, max_exponent_bits=7, total_bits=8), line by line.
std::vector<double> create_dynamic_map(bool has_sign) {
  std::vector<double> data = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int items = 1 << (has_sign ? i : i + 1);
    for (int k = 0; k < items; ++k) {
      const double low = 0.1 + 0.9 * k / items, high = 0.1 + 0.9 * (k + 1) / items;
      data.push_back(std::pow(10, i - 6) * (low + high) / 2);
      if (has_sign) data.push_back(-data.back());
    }
  }
  std::sort(data.begin(), data.end());
  return data;
}

Tensor run(std::string_view op, Tensor in, Attrs attrs) {
  Builder b;
  ValueId x = b.input("x", in.type);
  b.output("y", b.emit(op, {x}, std::move(attrs)));
  const Graph g = std::move(b).finish();
  return evaluate_graph(g, {{g.inputs[0].value, std::move(in)}})[0];
}

class DynamicCode : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Signs, DynamicCode, testing::Bool());

TEST_P(DynamicCode, ValuesAreTheMaps) {
  const std::vector<double> map = create_dynamic_map(GetParam());
  ASSERT_EQ(map.size(), 256U);
  Tensor codes = Tensor::zeros({DType::kU8, {256}});
  for (int64_t k = 0; k < 256; ++k) codes.i[static_cast<size_t>(k)] = k;
  const Tensor found = run("dynamic_value", codes, {{"signed", int64_t{GetParam()}}, {"to", DType::kF64}});
  for (size_t k = 0; k < 256; ++k) EXPECT_NEAR(found.f[k], map[k], 1e-14 * std::fabs(map[k])) << k;
}

TEST_P(DynamicCode, IsTheNearestOfItsSign) {
  const bool has_sign = GetParam();
  const std::vector<double> map = create_dynamic_map(has_sign);
  std::vector<double> values = {0, 1, 1e-9, 1e-7, 0.996, 0.9966, 0.1, 0.01};
  std::mt19937 random(7);
  for (int k = 0; k < 2000; ++k) values.push_back(std::pow(10, -8 * std::generate_canonical<double, 40>(random)));
  for (double v : map) values.push_back(std::fabs(v));
  if (has_sign) {
    for (size_t k = 1, n = values.size(); k < n; ++k) values.push_back(-values[k]);
  }
  Tensor x = Tensor::zeros({DType::kF64, {static_cast<int64_t>(values.size())}});
  x.f = values;
  const Tensor found = run("dynamic_code", x, {{"signed", int64_t{has_sign}}});
  EXPECT_EQ(found.type.dtype, DType::kU8);
  for (size_t k = 0; k < values.size(); ++k) {
    size_t nearest = 0;
    for (size_t c = 1; c < 256; ++c) {
      const bool fits = !has_sign || (map[c] < 0) == (values[k] < 0);
      if (fits && std::fabs(map[c] - values[k]) < std::fabs(map[nearest] - values[k])) nearest = c;
    }
    EXPECT_EQ(found.i[k], static_cast<int64_t>(nearest)) << values[k];
  }
}

}  // namespace
}  // namespace partita
