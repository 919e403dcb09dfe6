// The CUDA module's own kernels against the CPU's library kernels, without a GPU (cuda_kernels_host.h). The kernels'
// files are compiled here as they are.
#include "tests/runtime/support/cuda_kernels_host.h"

#include <array>
#include <limits>

#include "runtime/cuda/kernels/attention.cu"
#include "runtime/cuda/kernels/indexing.cu"
#include "runtime/cuda/kernels/pool.cu"
#include "runtime/cuda/kernels/scan.cu"
#include "tests/runtime/support/kernel_harness.h"

namespace partita::runtime {
namespace {

std::vector<TestTensor> run(const std::string& name, const std::vector<TestTensor>& inputs,
                            std::vector<TestTensor> outputs, Params params) {
  const absl::Status status = run_kernel(name, inputs, outputs, std::move(params));
  EXPECT_TRUE(status.ok()) << status;
  return outputs;
}

template <typename T>
std::vector<T> elements(const TestTensor& t) {
  return std::vector<T>(t.values.begin(), t.values.end());
}
template <typename T>
std::vector<double> doubles(const std::vector<T>& v) {
  return std::vector<double>(v.begin(), v.end());
}

// As CudaDevice::launch_items does it, with few blocks so that threads go round.
template <typename F>
void for_items(F f) {
  HostGrid::instance().launch({3}, 64, f);
}

TEST(CudaGather, MatchesTheCpu) {
  const TestTensor x = random_tensor(DType::kF32, {3, 50, 7}, 1), i = random_integers(DType::kI64, {41}, -60, 60, 2);
  TestTensor expected = run_one("gather", {x, i}, zeros(DType::kF32, {3, 41, 7}), {{"dim", int64_t{1}}});
  std::vector<float> from = elements<float>(x), to(3 * 41 * 7);
  std::vector<int64_t> indices = elements<int64_t>(i);
  for_items([&] {
    gather_32_i64(reinterpret_cast<uint32_t*>(from.data()), indices.data(), reinterpret_cast<uint32_t*>(to.data()), 3,
                  50, 41, 7);
  });
  EXPECT_EQ(doubles(to), expected.values);
}

TEST(CudaGatherGrad, MatchesTheCpuBitByBit) {
  for (int64_t n : {1, 5, 300, 70000}) {
    const int64_t count = 1500, inner = 5, outer = 2;
    TestTensor g = random_tensor(DType::kF32, {outer, count, inner}, 1);
    for (double& v : g.values) v = static_cast<float>(v * 1.1);
    const TestTensor i = random_integers(DType::kI32, {count}, 0, n, 2);
    TestTensor expected = run_one("gather_grad", {g, i}, zeros(DType::kF32, {outer, n, inner}), {{"dim", int64_t{1}}});
    std::vector<float> from = elements<float>(g), dx(static_cast<size_t>(outer * n * inner), 0);
    std::vector<int32_t> indices = elements<int32_t>(i), keys(2 * count), order(2 * count);
    int passes = 2;
    while ((int64_t{1} << (4 * passes)) < n) passes += 2;
    HostGrid::instance().launch({1}, kSortThreads,
                                [&] { sort_rows_i32(indices.data(), n, count, passes, keys.data(), order.data()); });
    EXPECT_TRUE(std::is_sorted(keys.begin(), keys.begin() + count));
    // More outer parts than blocks may be side by side: they take turns.
    HostGrid::instance().launch({static_cast<unsigned>(count), n == 5 ? 1u : static_cast<unsigned>(outer)}, 32, [&] {
      add_runs_f32(from.data(), keys.data(), order.data(), dx.data(), outer, n, count, inner);
    });
    EXPECT_EQ(doubles(dx), expected.values) << n;
  }
}

// One row out of a few, as exporters take q, k and v apart: its blocks share the row.
TEST(CudaGatherGrad, SharesALongRow) {
  const int64_t n = 3, inner = 5000;
  const TestTensor g = random_tensor(DType::kF32, {inner}, 1), i = tensor(DType::kI64, {}, {2});
  const TestTensor expected = run_one("gather_grad", {g, i}, zeros(DType::kF32, {n, inner}), {{"dim", int64_t{0}}});
  std::vector<float> from = elements<float>(g), dx(static_cast<size_t>(n * inner), 0);
  const std::vector<int32_t> keys = {2, 2}, order = {0, 0};
  HostGrid::instance().launch({1, 1, 2}, 256,
                              [&] { add_runs_f32(from.data(), keys.data(), order.data(), dx.data(), 1, n, 1, inner); });
  EXPECT_EQ(doubles(dx), expected.values);
}

AlongDevice along_middle(int64_t size, int64_t count, int64_t before, int64_t after) {
  AlongDevice a{size, after, count, after, before * after, 2, {before, after}, {size * after, 1}, {count * after, 1}};
  return a;
}

TEST(CudaTakeAlong, MatchesTheCpu) {
  const TestTensor x = random_tensor(DType::kF64, {4, 9, 5}, 3),
                   i = random_integers(DType::kI64, {4, 13, 5}, -12, 12, 4),
                   g = random_tensor(DType::kF64, {4, 13, 5}, 5);
  const AlongDevice a = along_middle(9, 13, 4, 5);
  std::vector<double> y(4 * 13 * 5), dx(4 * 9 * 5, 0), from = x.values, gradient = g.values;
  std::vector<int64_t> indices = elements<int64_t>(i);
  for_items([&] {
    take_along_64_i64(reinterpret_cast<uint64_t*>(from.data()), indices.data(), reinterpret_cast<uint64_t*>(y.data()),
                      a);
  });
  for_items([&] { take_along_grad_f64_i64(gradient.data(), indices.data(), dx.data(), a); });
  EXPECT_EQ(y, run_one("take_along", {x, i}, zeros(DType::kF64, {4, 13, 5}), {{"dim", int64_t{1}}}).values);
  EXPECT_EQ(dx, run_one("take_along_grad", {g, i}, zeros(DType::kF64, {4, 9, 5}), {{"dim", int64_t{1}}}).values);
}

TEST(CudaGatherNd, MatchesTheCpu) {
  const TestTensor x = random_tensor(DType::kF32, {3, 4, 6, 5}, 1),
                   i = random_integers(DType::kI64, {3, 7, 2}, -5, 8, 2);
  const TestTensor expected = run_one("gather_nd", {x, i}, zeros(DType::kF32, {3, 7, 5}), {{"batch_dims", int64_t{1}}});
  const SlicesDevice s{3, 7, 24, 2, {4, 6}, {6, 1}};
  std::vector<int64_t> indices = elements<int64_t>(i), rows(21);
  std::vector<float> from = elements<float>(x), to(3 * 7 * 5);
  for_items([&] { slice_rows_i64(indices.data(), rows.data(), s); });
  for_items([&] {
    gather_32_i64(reinterpret_cast<uint32_t*>(from.data()), rows.data(), reinterpret_cast<uint32_t*>(to.data()), 1, 72,
                  21, 5);
  });
  EXPECT_EQ(doubles(to), expected.values);
}

TEST(CudaScan, MatchesTheCpu) {
  const TestTensor x = random_tensor(DType::kF64, {3, 9, 4}, 1);
  std::vector<double> from = x.values, y(from.size());
  for (int exclusive : {0, 1}) {
    for (int reverse : {0, 1}) {
      for_items([&] { cumsum_f64(from.data(), y.data(), 3, 9, 4, exclusive, reverse); });
      EXPECT_EQ(y, run_one("cumsum", {x}, zeros(DType::kF64, x.shape),
                           {{"dim", int64_t{1}}, {"exclusive", int64_t{exclusive}}, {"reverse", int64_t{reverse}}})
                       .values);
    }
  }
  TestTensor repeated = random_integers(DType::kF64, {3, 9, 4}, 0, 4, 2);
  repeated.values[7] = std::nan("");
  for (int64_t largest : {0, 1}) {
    std::vector<double> values(3 * 5 * 4);
    std::vector<int64_t> at(values.size());
    std::vector<TestTensor> expected =
        run("topk", {repeated}, {zeros(DType::kF64, {3, 5, 4}), zeros(DType::kI64, {3, 5, 4})},
            {{"dim", int64_t{1}}, {"k", int64_t{5}}, {"largest", largest}});
    for_items(
        [&] { topk_f64(repeated.values.data(), values.data(), at.data(), 3, 9, 4, 5, static_cast<int>(largest)); });
    EXPECT_EQ(doubles(at), expected[1].values);
  }
}

TEST(CudaArgmax, MatchesTheCpu) {
  TestTensor x = random_integers(DType::kF64, {3, 9, 4}, 0, 4, 2);  // several that are equal
  x.values[7] = std::nan("");
  for (int64_t last : {0, 1}) {
    std::vector<int64_t> at(3 * 4);
    for_items([&] { argmax_f64(x.values.data(), at.data(), 3, 9, 4, static_cast<int>(last)); });
    EXPECT_EQ(doubles(at), run_one("argmax", {x}, zeros(DType::kI64, {3, 4}),
                                   {{"dim", int64_t{1}}, {"keep", int64_t{0}}, {"last", last}})
                               .values);
  }
}

constexpr std::pair<const char*, int> kUpdates[] = {
    {"none", kReplace}, {"add", kAddUpdate}, {"mul", kMulUpdate}, {"max", kMaxUpdate}, {"min", kMinUpdate}};

TEST(CudaScatterElements, MatchesTheCpuBitByBit) {
  const TestTensor x = random_tensor(DType::kF64, {4, 9, 5}, 3),
                   i = random_integers(DType::kI64, {4, 13, 5}, -12, 12, 4);  // several updates of an element
  TestTensor u = random_tensor(DType::kF64, {4, 13, 5}, 5);
  u.values[11] = std::nan("");
  const AlongDevice a = along_middle(9, 13, 4, 5);
  std::vector<int64_t> indices = elements<int64_t>(i);
  for (const auto& [name, mode] : kUpdates) {
    std::vector<double> y = x.values;
    for_items([&] { scatter_elements_f64_i64(indices.data(), u.values.data(), y.data(), a, mode); });
    const TestTensor expected = run_one("scatter_elements", {x, i, u}, zeros(DType::kF64, x.shape),
                                        {{"dim", int64_t{1}}, {"mode", std::string(name)}});
    for (size_t k = 0; k < y.size(); ++k)
      EXPECT_TRUE(y[k] == expected.values[k] || (std::isnan(y[k]) && std::isnan(expected.values[k])))
          << name << " " << k;
  }
  std::vector<double> y = x.values;
  for_items([&] {
    scatter_elements_64_i64(indices.data(), reinterpret_cast<const uint64_t*>(u.values.data()),
                            reinterpret_cast<uint64_t*>(y.data()), a, kReplace);
  });
  const TestTensor replaced = run_one("scatter_elements", {x, i, u}, zeros(DType::kF64, x.shape),
                                      {{"dim", int64_t{1}}, {"mode", std::string("none")}});
  EXPECT_EQ(std::memcmp(y.data(), replaced.values.data(), y.size() * sizeof(double)), 0);
}

TEST(CudaScatterNd, MatchesTheCpuBitByBit) {
  const TestTensor x = random_tensor(DType::kF32, {4, 6, 5}, 1), i = random_integers(DType::kI64, {40, 2}, -5, 8, 2);
  TestTensor u = random_tensor(DType::kF32, {40, 5}, 3);
  for (double& v : u.values) v = static_cast<float>(v * 1.1);
  const SlicesDevice s{1, 40, 24, 2, {4, 6}, {6, 1}};
  std::vector<int64_t> indices = elements<int64_t>(i), rows(40);
  std::vector<float> updates = elements<float>(u);
  for_items([&] { slice_rows_i64(indices.data(), rows.data(), s); });
  for (const auto& [name, mode] : kUpdates) {
    std::vector<float> y = elements<float>(x);
    for_items([&] { scatter_slices_f32(rows.data(), updates.data(), y.data(), 1, 40, 5, mode); });
    EXPECT_EQ(doubles(y),
              run_one("scatter_nd", {x, i, u}, zeros(DType::kF32, x.shape), {{"mode", std::string(name)}}).values)
        << name;
  }
}

TEST(CudaShardSlice, MatchesTheCpu) {
  const TestTensor x = random_tensor(DType::kF32, {3, 8, 5}, 1), at = tensor(DType::kI64, {}, {2});
  std::vector<float> from = elements<float>(x), to(3 * 2 * 5);
  const int64_t coordinate = 2;
  for_items([&] {
    shard_slice_32(reinterpret_cast<uint32_t*>(from.data()), &coordinate, reinterpret_cast<uint32_t*>(to.data()), 3, 4,
                   10);
  });
  EXPECT_EQ(doubles(to),
            run_one("shard_slice", {x, at}, zeros(DType::kF32, {3, 2, 5}), {{"dim", int64_t{1}}, {"parts", int64_t{4}}})
                .values);
}

struct PoolCase {
  int64_t h, w, kernel, stride, low, high, dilation;
  int64_t out(int64_t size) const { return (size + low + high - dilation * (kernel - 1) - 1) / stride + 1; }
};

TEST(CudaDivisor, DividesAnyNumber) {
  constexpr int32_t kLargest = std::numeric_limits<int32_t>::max();
  for (int32_t d : {1, 2, 3, 5, 7, 12, 56, 112, 1000, 12544, 65535, 65536, 65537, 1 << 30, kLargest - 1, kLargest}) {
    const Divisor by = Divisor::of(d);
    for (int64_t k : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000}, int64_t{kLargest} / d}) {
      for (int64_t n = k * d - 1; n <= k * d + 1; ++n) {
        if (n >= 0 && n <= kLargest) {
          ASSERT_EQ(by(static_cast<int32_t>(n)), n / d) << n << " / " << d;
        }
      }
    }
    ASSERT_EQ(by(kLargest), kLargest / d) << d;
  }
}

// [2, channels, pixels] with its channels last, or such a one with its channels second.
template <typename T>
std::vector<T> turned(const std::vector<T>& x, int64_t channels, bool back = false) {
  const int64_t pixels = static_cast<int64_t>(x.size()) / 2 / channels;
  std::vector<T> made(x.size());
  for (int64_t k = 0; k < static_cast<int64_t>(x.size()); ++k) {
    const int64_t pixel = k % pixels, channel = k / pixels % channels, sample = k / pixels / channels;
    const int64_t last = (sample * pixels + pixel) * channels + channel;
    made[static_cast<size_t>(back ? k : last)] = x[static_cast<size_t>(back ? last : k)];
  }
  return made;
}

// `channels`: side by side in memory; 1: none, and as many planes more.
void check_pools(int64_t channels) {
  using Ints = std::vector<int64_t>;
  for (const PoolCase& c : {PoolCase{9, 12, 2, 2, 0, 0, 1}, PoolCase{11, 7, 3, 2, 1, 1, 1},
                            PoolCase{10, 10, 3, 1, 1, 0, 1}, PoolCase{13, 9, 2, 3, 0, 1, 2}}) {
    for (int64_t padded : {0, 1}) {
      const int64_t planes = 6 / channels, oh = c.out(c.h), ow = c.out(c.w);
      Params params = {{"kernel", Ints{c.kernel, c.kernel}},
                       {"strides", Ints{c.stride, c.stride}},
                       {"pads_low", Ints{c.low, c.low}},
                       {"pads_high", Ints{c.high, c.high}},
                       {"dilations", Ints{c.dilation, c.dilation}},
                       {"count_include_pad", padded}};
      const auto three = [](int64_t first, int64_t a, int64_t b) {
        return std::array{static_cast<int32_t>(first), static_cast<int32_t>(a), static_cast<int32_t>(b)};
      };
      WindowDevice w{static_cast<int32_t>(planes), {}, {}, {}, {}, {}, {}, {}, static_cast<int32_t>(padded)};
      const auto set = [](int32_t* to, const std::array<int32_t, 3>& from) { std::copy(from.begin(), from.end(), to); };
      set(w.in, three(1, c.h, c.w)), set(w.out, three(1, oh, ow)), set(w.kernel, three(1, c.kernel, c.kernel));
      set(w.stride, three(1, c.stride, c.stride)), set(w.low, three(0, c.low, c.low));
      set(w.high, three(0, c.high, c.high)), set(w.dilation, three(1, c.dilation, c.dilation));
      w.channels = static_cast<int32_t>(channels);
      w = w.ready();
      const auto given = [&](const TestTensor& t) { return channels == 1 ? t.values : turned(t.values, channels); };
      const auto made = [&](const auto& v) { return channels == 1 ? v : turned(v, channels, true); };
      const TestTensor x = random_tensor(DType::kF64, {2, 3, c.h, c.w}, 1),
                       g = random_tensor(DType::kF64, {2, 3, oh, ow}, 2);
      std::vector<double> from = given(x), gradient = given(g), y(g.values.size()), dx(x.values.size());
      std::vector<int32_t> at(y.size());
      for_items([&] { max_pool_f64(from.data(), y.data(), at.data(), w); });
      std::vector<TestTensor> expected =
          run("max_pool", {x}, {zeros(DType::kF64, g.shape), zeros(DType::kI32, g.shape)}, params);
      EXPECT_EQ(made(y), expected[0].values);
      EXPECT_EQ(doubles(made(at)), expected[1].values);
      for_items([&] { max_pool_grad_f64(gradient.data(), at.data(), dx.data(), w); });
      EXPECT_EQ(made(dx), run_one("max_pool_grad", {g, expected[1]}, zeros(DType::kF64, x.shape), params).values);
      if (c.dilation != 1) continue;
      auto near = [](const std::vector<double>& a, const std::vector<double>& b) {
        ASSERT_EQ(a.size(), b.size());
        for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], 1e-14) << k;
      };
      for_items([&] { avg_pool_f64(from.data(), y.data(), w); });
      near(made(y), run_one("avg_pool", {x}, zeros(DType::kF64, g.shape), params).values);
      for_items([&] { avg_pool_grad_f64(gradient.data(), dx.data(), w); });
      near(made(dx), run_one("avg_pool_grad", {g}, zeros(DType::kF64, x.shape), params).values);
    }
  }
}

TEST(CudaPool, MatchesTheCpu) { check_pools(1); }
TEST(CudaPool_ChannelsLast, MatchesTheCpu) { check_pools(3); }

// Row-major products of a batch of matrices, as cuBLASLt gives them to the kernels in between.
std::vector<double> products(const std::vector<double>& a, const std::vector<double>& b, int64_t batch, int64_t m,
                             int64_t n, int64_t k, bool ta, bool tb) {
  std::vector<double> c(static_cast<size_t>(batch * m * n), 0);
  for (int64_t o = 0; o < batch; ++o)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t l = 0; l < k; ++l)
          c[static_cast<size_t>((o * m + i) * n + j)] +=
              a[static_cast<size_t>(o * m * k + (ta ? l * m + i : i * k + l))] *
              b[static_cast<size_t>(o * k * n + (tb ? j * k + l : l * n + j))];
  return c;
}

// The chain of cuda_attention.cc, products on the host, against the CPU's attention and its gradient.
void check_attention(int64_t batch, int64_t kv, int64_t group, int64_t s, int64_t t, bool causal, int mask_kind) {
  const int64_t heads = kv * group, d = 6, e = 5, rows = group * s, groups = batch * kv;
  const TestTensor q = random_tensor(DType::kF64, {batch, heads, s, d}, 1),
                   k = random_tensor(DType::kF64, {batch, kv, t, d}, 2),
                   v = random_tensor(DType::kF64, {batch, kv, t, e}, 3),
                   g = random_tensor(DType::kF64, {batch, heads, s, e}, 4);
  TestTensor mask = mask_kind == 1   ? random_integers(DType::kBool, {batch, 1, s, t}, 0, 2, 5)
                    : mask_kind == 2 ? random_tensor(DType::kF64, {1, heads, 1, t}, 5)
                                     : TestTensor{DType::kInvalid, {}, {}};
  Params params = {{"scale", 0.37}, {"causal", int64_t{causal}}};
  std::vector<TestTensor> in = {q, k, v};
  if (mask_kind != 0) in.push_back(mask);
  std::vector<TestTensor> expected =
      run("attention", in, {zeros(DType::kF64, g.shape), zeros(DType::kF32, {batch, heads, s})}, params);

  ScoresDevice z{0, batch * heads, heads, s, t, 0.37, causal, mask_kind == 2 ? 3 : mask_kind, {}};
  if (mask_kind == 1) z.mask_stride[0] = s * t, z.mask_stride[2] = t, z.mask_stride[3] = 1;
  if (mask_kind == 2) z.mask_stride[1] = t, z.mask_stride[3] = 1;
  std::vector<uint8_t> bools = elements<uint8_t>(mask);
  const void* mask_data = mask_kind == 1 ? static_cast<const void*>(bools.data()) : mask.values.data();
  std::vector<double> p = products(q.values, k.values, groups, rows, t, d, false, true), scores = p;
  std::vector<float> lse(static_cast<size_t>(batch * heads * s));
  const Index3 blocks{static_cast<unsigned>(batch * heads * s)};
  HostGrid::instance().launch(blocks, kThreads, [&] { softmax_rows_f64(p.data(), mask_data, lse.data(), z); });
  auto near = [](const std::vector<double>& a, const std::vector<double>& b, double tolerance, const char* what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_TRUE(a[i] == b[i] || std::abs(a[i] - b[i]) < tolerance) << what << i;
  };
  near(products(p, v.values, groups, rows, e, t, false, false), expected[0].values, 1e-12, "y");
  near(doubles(lse), expected[1].values, 1e-6, "lse");

  std::vector<TestTensor> gradients =
      run("attention_grad", {g, q, k, v, mask, expected[0], expected[1]},
          {zeros(DType::kF64, q.shape), zeros(DType::kF64, k.shape), zeros(DType::kF64, v.shape)}, params);
  lse = elements<float>(expected[1]);
  HostGrid::instance().launch(blocks, kThreads, [&] { probabilities_f64(scores.data(), mask_data, lse.data(), z); });
  near(products(scores, g.values, groups, t, e, rows, true, false), gradients[2].values, 1e-6, "dv");
  std::vector<double> dp = products(g.values, v.values, groups, rows, t, e, false, true);
  HostGrid::instance().launch(blocks, kThreads, [&] {
    score_gradients_f64(scores.data(), dp.data(), g.values.data(), expected[0].values.data(), e, z);
  });
  near(products(dp, k.values, groups, rows, d, t, false, false), gradients[0].values, 1e-6, "dq");
  near(products(dp, q.values, groups, t, d, rows, true, false), gradients[1].values, 1e-6, "dk");
}

TEST(CudaAttention, MatchesTheCpu) {
  for (bool causal : {false, true}) {
    for (int mask : {0, 1, 2}) {
      check_attention(2, 3, 1, 9, 9, causal, mask);
      check_attention(1, 2, 3, 5, 140, causal, mask);
    }
  }
}

}  // namespace
}  // namespace partita::runtime
