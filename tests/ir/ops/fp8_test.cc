// Rounding to fp8 against all numbers of the format, decoded from their bytes here, and products of rounded operands.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "base/cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

using testing::HasSubstr;
using Ints = std::vector<int64_t>;

struct Number {
  double value = 0;
  bool even = false;  // its last bit
};

// The finite numbers >= 0 of a format, ascending. e4m3 has no infinity, and one NaN; e5m2 is as IEEE's formats are.
std::vector<Number> numbers(bool e4m3) {
  const int fraction = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  std::vector<Number> all;
  for (int byte = 0; byte < 128; ++byte) {
    const int exponent = byte >> fraction, low = byte & ((1 << fraction) - 1);
    if (e4m3 ? byte == 127 : exponent == 31) continue;
    const double m = low / static_cast<double>(1 << fraction);
    all.push_back({exponent == 0 ? std::ldexp(m, 1 - bias) : std::ldexp(1 + m, exponent - bias), byte % 2 == 0});
  }
  return all;
}

double nearest(const std::vector<Number>& all, double x) {
  const double size = std::abs(x);
  Number best = all[0];
  for (const Number& n : all) {
    const double now = std::abs(n.value - size), before = std::abs(best.value - size);
    if (now < before || (now == before && n.even)) best = n;
  }
  return std::copysign(best.value, x);
}

// The least power of two by which the largest number of a block fits.
double scale(const std::vector<Number>& all, double most) {
  double s = 0x1p-120;
  while (most / s > all.back().value) s *= 2;
  return s;
}

Attrs rounding(Ints dims, const char* format, int64_t block = 32) {
  Attrs attrs;
  attrs.set("block", block);
  attrs.set("dims", std::move(dims));
  attrs.set("format", std::string(format));
  return attrs;
}

Tensor rounded(const Tensor& x, const Attrs& attrs) {
  const Tensor* inputs[] = {&x};
  return evaluate_op(*find_op("round_to_fp8"), attrs, inputs)[0];
}

class RoundToFp8 : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Formats, RoundToFp8, testing::Values("e4m3", "e5m2"));

TEST_P(RoundToFp8, GivesTheNearestNumberOfABlock) {
  const std::vector<Number> all = numbers(GetParam() == std::string("e4m3"));
  std::mt19937 rng(7);
  std::normal_distribution<double> normal;
  Tensor x = Tensor::zeros({DType::kF32, {64, 32}});
  for (size_t k = 0; k < x.f.size(); ++k) {
    const int row = static_cast<int>(k / 32);
    x.f[k] = static_cast<float>(std::ldexp(normal(rng) * std::exp2(normal(rng) * 6), row - 32));
    if (row % 8 == 1) x.f[k] = all[rng() % all.size()].value;  // numbers as they are,
    if (row % 8 == 2) {                                        // halves between two of them,
      const size_t n = rng() % (all.size() - 1);
      x.f[k] = -(all[n].value + all[n + 1].value) / 2;
    }
    if (row % 8 == 3) x.f[k] = k % 32 == 5 ? all.back().value * (1 + (row > 30) * 0x1p-20) : all[k % 32].value;
  }
  const Tensor y = rounded(x, rounding({1}, GetParam()));
  for (size_t row = 0; row < 64; ++row) {
    double most = 0;
    for (size_t k = 0; k < 32; ++k) most = std::max(most, std::abs(x.f[row * 32 + k]));
    const double s = scale(all, most);
    for (size_t k = row * 32; k < row * 32 + 32; ++k)
      ASSERT_EQ(y.f[k], nearest(all, x.f[k] / s) * s) << x.f[k] << " in row " << row << ", scale " << s;
  }
}

TEST_P(RoundToFp8, IsTheSameOnceMoreAndFitsIntoBf16) {
  std::mt19937 rng(8);
  std::normal_distribution<double> normal;
  Tensor x = Tensor::zeros({DType::kF32, {16, 32}});
  for (double& v : x.f) v = static_cast<float>(normal(rng));
  const Tensor y = rounded(x, rounding({1}, GetParam()));
  EXPECT_NE(y.f, x.f);
  EXPECT_EQ(rounded(y, rounding({1}, GetParam())).f, y.f);
  for (double v : y.f) EXPECT_EQ(std::bit_cast<uint32_t>(static_cast<float>(v)) & 0xffff, 0u) << v;
}

TEST(RoundToFp8, BlocksOfZeroOfTinyAndOfNoNumbers) {
  Tensor x = Tensor::zeros({DType::kF32, {5, 2}});
  x.f = {0,
         -0.0,
         0x1p-130,
         0x1p-126,
         1,
         std::numeric_limits<double>::infinity(),
         std::numeric_limits<double>::quiet_NaN(),
         1,
         0x1p100,
         1};
  const Tensor y = rounded(x, rounding({1}, "e4m3", 2));
  EXPECT_THAT(std::vector<double>(y.f.begin(), y.f.begin() + 4), testing::Each(0.0));
  for (int k = 4; k < 8; ++k) EXPECT_TRUE(std::isnan(y.f[k])) << k;
  EXPECT_EQ(y.f[8], 0x1p100);
  EXPECT_EQ(y.f[9], 0);
}

TEST(RoundToFp8, ATileHasOneScale) {
  Tensor x = Tensor::zeros({DType::kF32, {4, 4}});
  for (size_t k = 0; k < 16; ++k) x.f[k] = 1 + 0x1p-4 * static_cast<double>(k);
  x.f[0] = 448 * 1024;
  const Tensor y = rounded(x, rounding({0, 1}, "e4m3", 2));
  for (size_t k : {1, 4, 5}) EXPECT_EQ(y.f[k], 2 * std::nearbyint(x.f[k] / 2)) << k;  // a scale of 1024: steps of 2
  EXPECT_EQ(y.f[2], 1.125);
}

TEST(RoundToFp8, RefusesWhatItCannotRound) {
  const TensorType type{DType::kF32, {4, 4}};
  auto error = [&](Ints dims, const char* format, DType dtype = DType::kF32) {
    const TensorType types[] = {{dtype, {4, 4}}};
    const Attrs attrs = rounding(std::move(dims), format, 2);
    return std::string(infer_types(*find_op("round_to_fp8"), {attrs, types}).status().message());
  };
  EXPECT_EQ(error({1}, "e4m3"), "");
  EXPECT_THAT(error({2}, "e4m3"), HasSubstr("a multiple of a block of 2, found dimension 2"));
  EXPECT_THAT(error({1}, "e3m4"), HasSubstr("a format e4m3 or e5m2"));
  EXPECT_THAT(error({1}, "e4m3", DType::kI32), HasSubstr("expected bf16, f32 or f64"));
}

// The product and both gradients, each of operands in blocks along what it sums over.
TEST(Fp8MatMul, RoundsAlongWhatIsSummedUp) {
  std::mt19937 rng(9);
  std::normal_distribution<double> normal;
  auto random = [&](Shape shape) {
    Tensor t = Tensor::zeros({DType::kF32, std::move(shape)});
    for (double& v : t.f) v = static_cast<float>(normal(rng));
    return t;
  };
  const Tensor x = random({2, 32, 64}), w = random({1, 32, 64}), g = random({2, 32, 32});
  Builder b;
  const ValueId vx = b.input("x", x.type), vw = b.input("w", w.type), vg = b.input("g", g.type);
  Attrs attrs;
  attrs.set("transpose_b", int64_t{1}), attrs.set("fp8", int64_t{32}), attrs.set("tiles", int64_t{1});
  attrs.set("rows", int64_t{1}), attrs.set("a", std::string("e4m3")), attrs.set("b", std::string("e4m3"));
  attrs.set("gradient", std::string("e5m2"));
  const ValueId y = b.emit("fp8_matmul", {vx, vw}, attrs);
  const TensorType types[] = {x.type, w.type};
  const ValueId inputs[] = {vx, vw}, outputs[] = {y}, gradients[] = {vg};
  const std::vector<ValueId> d = find_op("fp8_matmul")->gradient({b, attrs, types, inputs, outputs, gradients});
  b.output("y", y), b.output("dx", d[0]), b.output("dw", d[1]);
  const Graph graph = std::move(b).finish();
  const std::vector<Tensor> found = evaluate_graph(graph, {{vx, x}, {vw, w}, {vg, g}});

  auto along = [](const Tensor& t, Ints dims, const char* format) {
    return rounded(t, rounding(std::move(dims), format)).f;
  };
  const auto x8 = along(x, {2}, "e4m3"), w8 = along(w, {1, 2}, "e4m3"), g8 = along(g, {2}, "e5m2"),
             xr = along(x, {1}, "e4m3"), gr = along(g, {1}, "e5m2");
  auto near = [](double a, double b) { return std::abs(a - b) <= 1e-9 * (1 + std::abs(b)); };
  for (size_t s = 0; s < 64; ++s) {
    for (size_t n = 0; n < 32; ++n) {
      double sum = 0;
      for (size_t k = 0; k < 64; ++k) sum += x8[s * 64 + k] * w8[n * 64 + k];
      ASSERT_TRUE(near(found[0].f[s * 32 + n], sum));
    }
    for (size_t k = 0; k < 64; ++k) {
      double sum = 0;
      for (size_t n = 0; n < 32; ++n) sum += g8[s * 32 + n] * w8[n * 64 + k];
      ASSERT_TRUE(near(found[1].f[s * 64 + k], sum));
    }
  }
  for (size_t n = 0; n < 32; ++n) {
    for (size_t k = 0; k < 64; ++k) {
      double sum = 0;
      for (size_t s = 0; s < 64; ++s) sum += gr[s * 32 + n] * xr[s * 64 + k];
      ASSERT_TRUE(near(found[2].f[n * 64 + k], sum));
    }
  }
}

}  // namespace
}  // namespace partita
