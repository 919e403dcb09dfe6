#include <array>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "runtime/kernels/conv_taps.h"
#include "runtime/kernels/tile_ops.h"
#include "tests/runtime/support/kernel_harness.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;
using Ints = std::vector<int64_t>;

struct Geometry {
  Ints x, w;  // whole shapes
  Ints strides, low, high, dilations;
  int64_t groups = 1;

  size_t rank() const { return x.size() - 2; }
  Ints y() const {
    Ints y = {x[0], w[0]};
    for (size_t d = 0; d < rank(); ++d)
      y.push_back((x[d + 2] + low[d] + high[d] - dilations[d] * (w[d + 2] - 1) - 1) / strides[d] + 1);
    return y;
  }
  Params params() const {
    return {{"strides", strides}, {"pads_low", low}, {"pads_high", high}, {"dilations", dilations}, {"groups", groups}};
  }
};

// Row-major position -> indices.
Ints unravel(int64_t at, const Ints& shape) {
  Ints index(shape.size());
  for (size_t d = shape.size(); d-- > 0; at /= shape[d]) index[d] = at % shape[d];
  return index;
}
int64_t ravel(const Ints& index, const Ints& shape) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

// Calls visit(element of x, of w, of y) for each product of the convolution.
template <typename F>
void for_products(const Geometry& g, F&& visit) {
  const Ints y = g.y();
  const Ints taps(g.w.begin() + 1, g.w.end());
  for (int64_t at = 0; at < product(y); ++at) {
    const Ints o = unravel(at, y);
    for (int64_t t = 0; t < product(taps); ++t) {
      const Ints k = unravel(t, taps);
      Ints x = {o[0], o[1] / (g.w[0] / g.groups) * taps[0] + k[0]}, w = {o[1], k[0]};
      bool inside = true;
      for (size_t d = 0; d < g.rank(); ++d) {
        x.push_back(o[d + 2] * g.strides[d] - g.low[d] + k[d + 1] * g.dilations[d]);
        w.push_back(k[d + 1]);
        inside = inside && x.back() >= 0 && x.back() < g.x[d + 2];
      }
      if (inside)
        visit(static_cast<size_t>(ravel(x, g.x)), static_cast<size_t>(ravel(w, g.w)), static_cast<size_t>(at));
    }
  }
}

const Geometry kGeometries[] = {
    {{2, 3, 9, 8}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {{1, 16, 14, 14}, {32, 16, 3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
    {{2, 3, 11, 12}, {5, 3, 7, 5}, {2, 3}, {3, 0}, {2, 2}, {1, 1}},
    {{1, 4, 10, 9}, {6, 2, 3, 3}, {1, 2}, {2, 0}, {1, 1}, {2, 1}, 2},
    {{2, 8, 6, 6}, {8, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 8},
    {{2, 16, 7, 7}, {32, 16, 1, 1}, {1, 1}, {0, 0}, {0, 0}, {1, 1}},
    {{3, 2, 17}, {4, 2, 4}, {3}, {2}, {0}, {1}},
    {{1, 2, 5, 6, 4}, {3, 2, 2, 3, 2}, {1, 2, 1}, {1, 1, 0}, {0, 1, 1}, {1, 1, 2}},
    // Small planes: by taps.
    {{16, 17, 2, 2}, {30, 17, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {{15, 32, 4, 3}, {18, 32, 3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
    {{16, 16, 3}, {16, 16, 5}, {1}, {2}, {2}, {1}},
    {{2, 16, 2, 3, 2}, {25, 16, 2, 3, 2}, {1, 2, 1}, {1, 1, 0}, {0, 1, 1}, {1, 1, 1}},
    {{16, 16, 1, 1}, {16, 16, 2, 2}, {1, 1}, {4, 2}, {0, 1}, {1, 1}},  // taps that never reach the plane
};

class ConvTypes : public ::testing::TestWithParam<DType> {};

TEST_P(ConvTypes, ForwardAndGradients_EqualLoops) {
  const DType dtype = GetParam();
  for (const Geometry& g : kGeometries) {
    const std::string what = shape_text(g.x) + shape_text(g.w);
    const TestTensor x = random_tensor(dtype, g.x, 1), w = random_tensor(dtype, g.w, 2),
                     dy = random_tensor(dtype, g.y(), 3);
    std::vector<double> y(dy.values.size(), 0), dx(x.values.size(), 0), dw(w.values.size(), 0);
    for_products(g, [&](size_t i, size_t k, size_t o) {
      y[o] += x.values[i] * w.values[k];
      dx[i] += dy.values[o] * w.values[k];
      dw[k] += dy.values[o] * x.values[i];
    });
    const double tolerance = tolerance_of(dtype);
    expect_close(run_one("conv", {x, w}, random_tensor(dtype, g.y(), 9), g.params()), y, tolerance, "conv " + what);
    expect_close(run_one("conv_grad_data", {dy, w}, random_tensor(dtype, g.x, 9), g.params()), dx, tolerance,
                 "grad_data " + what);
    expect_close(run_one("conv_grad_weight", {dy, x}, random_tensor(dtype, g.w, 9), g.params()), dw, tolerance,
                 "grad_weight " + what);
  }
}

Convolution convolution_of(const Geometry& g) {
  Convolution c;
  Window& w = c.window;
  c.outputs = g.w[0];
  w.batch = g.x[0];
  w.channels = g.x[1];
  w.rank = g.rank();
  for (size_t d = 0; d < g.rank(); ++d) {
    const size_t at = 3 - g.rank() + d;
    w.in[at] = g.x[d + 2];
    w.out[at] = g.y()[d + 2];
    w.kernel[at] = g.w[d + 2];
    w.stride[at] = g.strides[d];
    w.low[at] = g.low[d];
    w.high[at] = g.high[d];
    w.dilation[at] = g.dilations[d];
  }
  return c;
}

// By taps, whether or not it is faster; `result` is what it is written over.
TestTensor by_taps(const Geometry& g, Direction direction, const TestTensor& left, const TestTensor& right,
                   TestTensor result, int threads) {
  omp_set_num_threads(threads);
  const Step step;
  const ExecutionConfig config{.threads = threads, .scratch = std::make_shared<KernelScratch>()};
  auto kernel = make_conv_by_taps({step, config}, convolution_of(g), direction);
  EXPECT_TRUE(kernel.ok() && config.scratch->allocate().ok());
  std::vector<std::vector<std::byte>> memory = {to_bytes(left), to_bytes(right), to_bytes(result)};
  (*kernel)->run(std::array{memory[0].data(), memory[1].data(), memory[2].data()});
  from_bytes(memory[2], result);
  return result;
}

TEST(ConvByTaps, AnyGeometryAndNumberOfThreads_GivesTheExactSums) {
  const Geometry geometries[] = {
      {{17, 33, 5, 4}, {13, 33, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},    // two blocks of channels, chunks of places
      {{3, 256, 3, 3}, {50, 256, 5, 5}, {1, 1}, {2, 2}, {2, 2}, {1, 1}},   // tiles of y's channels
      {{3, 31, 3, 2}, {300, 31, 5, 5}, {1, 1}, {2, 2}, {2, 2}, {1, 1}},    // of x's
      {{11, 17, 19, 21}, {20, 17, 3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},  // blocks of samples, chunks of places
      {{2, 16, 24, 20}, {18, 16, 3, 2}, {1, 1}, {1, 0}, {2, 1}, {1, 2}},   // more places than a block has
      {{5, 16, 3, 4, 5}, {60, 16, 2, 3, 2}, {1, 2, 1}, {1, 0, 0}, {0, 1, 1}, {1, 1, 1}},
      {{20, 18, 40}, {16, 18, 4}, {3}, {0}, {2}, {2}},
      {{16, 3, 1, 1}, {5, 3, 2, 2}, {1, 1}, {4, 2}, {0, 1}, {1, 1}},  // taps that never reach the plane
      {{4, 3, 6, 6}, {2, 3, 1, 1}, {4, 4}, {0, 0}, {0, 0}, {1, 1}},   // places that no tap reaches
  };
  const auto integers = [](const Ints& shape, unsigned seed) {
    return random_integers(DType::kF32, shape, -3, 4, seed);
  };
  const auto wide = [](TestTensor t) {
    t.dtype = DType::kF64;
    return t;
  };
  for (const Geometry& g : geometries) {
    const TestTensor x = integers(g.x, 1), w = integers(g.w, 2), dy = integers(g.y(), 3);
    const auto expect = [&](const std::string& name, Direction direction, const TestTensor& left,
                            const TestTensor& right, const Ints& shape) {
      const TestTensor expected = run_one(name, {wide(left), wide(right)}, zeros(DType::kF64, shape), g.params());
      for (int threads : {1, 2, 5})
        EXPECT_TRUE(by_taps(g, direction, left, right, integers(shape, 4), threads).values == expected.values)
            << name << " " << shape_text(g.x) << shape_text(g.w) << ", threads: " << threads;
    };
    expect("conv", Direction::kForward, x, w, g.y());
    expect("conv_grad_data", Direction::kGradData, dy, w, g.x);
    expect("conv_grad_weight", Direction::kGradWeight, dy, x, g.w);
  }
}

TEST(ConvByTaps, AnyNumberOfThreads_GivesTheSameBits) {
  const Geometry g{{16, 48, 6, 6}, {80, 48, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}};
  const TestTensor x = random_tensor(DType::kF32, g.x, 1), w = random_tensor(DType::kF32, g.w, 2),
                   dy = random_tensor(DType::kF32, g.y(), 3);
  auto run = [&](int threads) {
    return std::vector{by_taps(g, Direction::kForward, x, w, zeros(DType::kF32, g.y()), threads).values,
                       by_taps(g, Direction::kGradData, dy, w, zeros(DType::kF32, g.x), threads).values,
                       by_taps(g, Direction::kGradWeight, dy, x, zeros(DType::kF32, g.w), threads).values};
  };
  const auto one = run(1);
  for (int threads : {2, 3, 5}) EXPECT_TRUE(run(threads) == one) << threads;
}

TEST(ConvByTaps, WhatIsFaster_DependsOnTheShapeAndTheProcessor) {
  auto taken = [](int64_t batch, int64_t channels, int64_t in, int64_t kernel, int64_t stride) {
    const int64_t low = kernel / 2;
    const Convolution c = convolution_of({{batch, channels, in, in},
                                          {channels, channels, kernel, kernel},
                                          {stride, stride},
                                          {low, low},
                                          {low, low},
                                          {1, 1}});
    return std::vector{is_faster_by_taps(c, Direction::kForward), is_faster_by_taps(c, Direction::kGradData),
                       is_faster_by_taps(c, Direction::kGradWeight)};
  };
  const bool narrow = !has_avx512();
  EXPECT_THAT(taken(32, 512, 2, 3, 1), ElementsAre(true, true, true));
  EXPECT_THAT(taken(8, 512, 2, 3, 1), ElementsAre(narrow, narrow, true));  // a part of a panel of samples
  EXPECT_THAT(taken(32, 256, 4, 3, 2), ElementsAre(narrow, true, true));
  EXPECT_THAT(taken(32, 256, 4, 3, 1), ElementsAre(narrow, narrow, true));
  EXPECT_THAT(taken(32, 128, 8, 3, 1), ElementsAre(narrow, narrow, true));
  EXPECT_THAT(taken(8, 128, 8, 3, 1), ElementsAre(false, false, true));
  EXPECT_THAT(taken(32, 64, 16, 3, 1), ElementsAre(false, false, narrow));
  EXPECT_THAT(taken(32, 64, 16, 3, 2), ElementsAre(false, narrow, true));
  EXPECT_THAT(taken(32, 256, 16, 3, 1), ElementsAre(false, false, true));
  EXPECT_THAT(taken(32, 128, 28, 3, 2), ElementsAre(false, false, narrow));
  EXPECT_THAT(taken(32, 32, 4, 3, 1), ElementsAre(narrow, narrow, narrow));
  EXPECT_THAT(taken(32, 64, 56, 3, 1), ElementsAre(false, false, narrow));
  EXPECT_THAT(taken(32, 64, 56, 3, 2), ElementsAre(false, false, false));
  EXPECT_THAT(taken(32, 64, 28, 3, 2), ElementsAre(false, false, narrow));
  EXPECT_THAT(taken(2, 64, 28, 3, 2), ElementsAre(false, false, false));
  EXPECT_THAT(taken(32, 16, 16, 3, 1), ElementsAre(false, false, false));
  EXPECT_THAT(taken(32, 256, 4, 1, 2), ElementsAre(false, false, false));
  EXPECT_THAT(taken(32, 3, 4, 3, 1), ElementsAre(false, false, false));
}

INSTANTIATE_TEST_SUITE_P(Types, ConvTypes, ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16));

TEST(Conv, Misfit_IsRefused) {
  std::vector<TestTensor> out = {zeros(DType::kF32, {1, 4, 5, 5})};
  const TestTensor x = zeros(DType::kF32, {1, 3, 5, 5}), w = zeros(DType::kF32, {4, 3, 3, 3});
  EXPECT_EQ(run_kernel("conv", {x, w}, out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run_kernel("conv", {x, w}, out, {{"strides", Ints{0, 1}}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run_kernel("conv", {x, w}, out, {{"pads_low", Ints{1}}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      run_kernel("conv", {x, w}, out, {{"groups", int64_t{2}}, {"pads_low", Ints{1, 1}}, {"pads_high", Ints{1, 1}}})
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(MaxPool, Padding_NeverWins) {
  const TestTensor x = tensor(DType::kF32, {1, 1, 3, 3}, {-9, -8, -7, -6, -5, -4, -3, -2, -1});
  std::vector<TestTensor> y = {zeros(DType::kF32, {1, 1, 2, 2}), zeros(DType::kI32, {1, 1, 2, 2})};
  const Params params = {
      {"kernel", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"pads_low", Ints{1, 1}}, {"pads_high", Ints{0, 0}}};
  ASSERT_TRUE(run_kernel("max_pool", {x}, y, params).ok());
  EXPECT_THAT(y[0].values, ElementsAre(-9, -7, -3, -1));
  EXPECT_THAT(y[1].values, ElementsAre(0, 2, 6, 8));
  const TestTensor g = tensor(DType::kF32, {1, 1, 2, 2}, {1, 2, 3, 4});
  EXPECT_THAT(run_one("max_pool_grad", {g, y[1]}, zeros(DType::kF32, {1, 1, 3, 3})).values,
              ElementsAre(1, 0, 2, 0, 0, 0, 3, 0, 4));
  EXPECT_THAT(
      run_one("max_pool_grad", {g, tensor(DType::kI32, {1, 1, 2, 2}, {0, 99, -1, 0})}, zeros(DType::kF32, {1, 1, 3, 3}))
          .values,
      ElementsAre(5, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(MaxPool, Dilation_SkipsAndOverlapsAreSummed) {
  const TestTensor x = tensor(DType::kF64, {1, 1, 6}, {1, 9, 3, 9, 2, 4});
  std::vector<TestTensor> y = {zeros(DType::kF64, {1, 1, 4}), zeros(DType::kI32, {1, 1, 4})};
  ASSERT_TRUE(run_kernel("max_pool", {x}, y, {{"kernel", Ints{2}}, {"strides", Ints{1}}, {"dilations", Ints{2}}}).ok());
  EXPECT_THAT(y[0].values, ElementsAre(3, 9, 3, 9));
  EXPECT_THAT(y[1].values, ElementsAre(2, 1, 2, 3));
  EXPECT_THAT(
      run_one("max_pool_grad", {tensor(DType::kF64, {1, 1, 4}, {1, 2, 3, 4}), y[1]}, zeros(DType::kF64, {1, 1, 6}))
          .values,
      ElementsAre(0, 2, 4, 4, 0, 0));
}

// Of all windows, tap by tap: the first of the largest, or the first NaN.
TEST(MaxPool, RandomWindows_AreTheirFirstLargest) {
  std::mt19937 rng(7);
  auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    const DType dtype = std::array{DType::kF32, DType::kF64, DType::kBF16, DType::kI32}[static_cast<size_t>(below(4))];
    const int64_t h = 1 + below(6), w = 1 + below(40);
    const Ints kernel{1 + below(3), 1 + below(4)}, strides{1 + below(3), 1 + below(4)}, dilations{1, 1 + below(2)};
    const Ints low{below(kernel[0]), below(kernel[1])}, high{below(kernel[0]), below(kernel[1])};
    Shape out{1, 2};
    for (size_t d = 0; d < 2; ++d) {
      const int64_t room = (d == 0 ? h : w) + low[d] + high[d] - (kernel[d] - 1) * dilations[d] - 1;
      out.push_back(room < 0 ? 0 : room / strides[d] + 1);
    }
    if (out[2] == 0 || out[3] == 0) continue;
    TestTensor x = zeros(dtype, {1, 2, h, w});
    for (double& v : x.values) {
      v = static_cast<double>(below(4));
      if (dtype != DType::kI32 && below(6) == 0) v = below(2) == 0 ? -INFINITY : NAN;
    }
    std::vector<TestTensor> y = {zeros(dtype, out), zeros(DType::kI32, out)};
    ASSERT_TRUE(run_kernel("max_pool", {x}, y,
                           {{"kernel", kernel},
                            {"strides", strides},
                            {"pads_low", low},
                            {"pads_high", high},
                            {"dilations", dilations}})
                    .ok());
    for (int64_t o = 0; o < static_cast<int64_t>(y[0].values.size()); ++o) {
      const int64_t plane = o / (out[2] * out[3]), row = o / out[3] % out[2], column = o % out[3];
      int64_t best = -1;
      const double* values = x.values.data() + plane * h * w;
      for (int64_t k = 0; k < kernel[0] * kernel[1]; ++k) {
        const int64_t r = row * strides[0] - low[0] + k / kernel[1] * dilations[0],
                      c = column * strides[1] - low[1] + k % kernel[1] * dilations[1], at = r * w + c;
        if (r < 0 || r >= h || c < 0 || c >= w) continue;
        if (best < 0 || values[at] > values[best] || (std::isnan(values[at]) && !std::isnan(values[best]))) best = at;
      }
      ASSERT_EQ(y[1].values[static_cast<size_t>(o)], std::max<int64_t>(best, 0)) << trial << ": " << o;
      if (best < 0 || std::isnan(values[best])) continue;
      ASSERT_EQ(y[0].values[static_cast<size_t>(o)], values[best]) << trial << ": " << o;
    }
  }
}

TEST(AvgPool, CountsPaddingOnRequest) {
  const TestTensor x = tensor(DType::kF32, {1, 1, 1, 3}, {2, 4, 6}), g = tensor(DType::kF32, {1, 1, 1, 2}, {4, 8});
  Params params = {{"kernel", Ints{1, 2}},
                   {"strides", Ints{1, 2}},
                   {"pads_low", Ints{0, 1}},
                   {"pads_high", Ints{0, 0}},
                   {"count_include_pad", int64_t{0}}};
  EXPECT_THAT(run_one("avg_pool", {x}, zeros(DType::kF32, {1, 1, 1, 2}), params).values, ElementsAre(2, 5));
  EXPECT_THAT(run_one("avg_pool_grad", {g}, zeros(DType::kF32, {1, 1, 1, 3}), params).values, ElementsAre(4, 4, 4));
  params["count_include_pad"] = int64_t{1};
  EXPECT_THAT(run_one("avg_pool", {x}, zeros(DType::kF32, {1, 1, 1, 2}), params).values, ElementsAre(1, 5));
  EXPECT_THAT(run_one("avg_pool_grad", {g}, zeros(DType::kF32, {1, 1, 1, 3}), params).values, ElementsAre(2, 4, 4));
}

}  // namespace
}  // namespace partita::runtime
