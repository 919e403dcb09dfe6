#include <bit>
#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "runtime/kernels/attention.h"
#include "runtime/kernels/tile_ops.h"
#include "tests/runtime/support/kernel_harness.h"
#include "tests/support/test_options.h"

namespace partita::runtime {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Case {
  int64_t b, h, kv, s, t, d, e;
  bool causal = false;
  DType mask = DType::kInvalid;
  std::vector<int64_t> mask_shape = {};
  double scale = 0;  // 0: 1 / sqrt(d)
};

struct Expected {
  std::vector<double> out, lse, dq, dk, dv;
};

double scale_of(const Case& c) { return c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.d)); }

Expected reference(const Case& c, const TestTensor& q, const TestTensor& k, const TestTensor& v, const TestTensor& mask,
                   const TestTensor& g) {
  Expected r;
  r.out.assign(static_cast<size_t>(c.b * c.h * c.s * c.e), 0);
  r.lse.assign(static_cast<size_t>(c.b * c.h * c.s), kNever);
  r.dq.assign(q.values.size(), 0);
  r.dk.assign(k.values.size(), 0);
  r.dv.assign(v.values.size(), 0);
  std::vector<double> p(static_cast<size_t>(c.t));
  for (int64_t row = 0; row < c.b * c.h * c.s; ++row) {
    const int64_t i = row % c.s, h = row / c.s % c.h, b = row / c.s / c.h, kv = b * c.kv + h / (c.h / c.kv);
    auto key = [&](int64_t j) { return k.values.data() + (kv * c.t + j) * c.d; };
    auto value = [&](int64_t j) { return v.values.data() + (kv * c.t + j) * c.e; };
    double maximum = kNever, sum = 0;
    for (int64_t j = 0; j < c.t; ++j) {
      double x = 0;
      for (int64_t z = 0; z < c.d; ++z) x += q.values[static_cast<size_t>(row * c.d + z)] * key(j)[z];
      x *= scale_of(c);
      if (c.mask != DType::kInvalid) {
        auto at = [&](size_t dim, int64_t index) { return c.mask_shape[dim] == 1 ? 0 : index; };
        const double m = mask.values[static_cast<size_t>(
            ((at(0, b) * c.mask_shape[1] + at(1, h)) * c.mask_shape[2] + at(2, i)) * c.mask_shape[3] + at(3, j))];
        if (c.mask == DType::kBool)
          x = m != 0 ? x : kNever;
        else
          x += m;
      }
      if (c.causal && j > i + c.t - c.s) x = kNever;
      p[static_cast<size_t>(j)] = x;
      maximum = std::max(maximum, x);
    }
    if (maximum == kNever) continue;
    for (double& x : p) sum += x = std::exp(x - maximum);
    r.lse[static_cast<size_t>(row)] = maximum + std::log(sum);
    double delta = 0;
    for (double& x : p) x /= sum;
    for (int64_t z = 0; z < c.e; ++z) {
      double& out = r.out[static_cast<size_t>(row * c.e + z)];
      for (int64_t j = 0; j < c.t; ++j) out += p[static_cast<size_t>(j)] * value(j)[z];
      delta += out * g.values[static_cast<size_t>(row * c.e + z)];
    }
    for (int64_t j = 0; j < c.t; ++j) {
      double dp = 0;
      for (int64_t z = 0; z < c.e; ++z) {
        const double dout = g.values[static_cast<size_t>(row * c.e + z)];
        dp += dout * value(j)[z];
        r.dv[static_cast<size_t>((kv * c.t + j) * c.e + z)] += p[static_cast<size_t>(j)] * dout;
      }
      const double ds = p[static_cast<size_t>(j)] * (dp - delta) * scale_of(c);
      for (int64_t z = 0; z < c.d; ++z) {
        r.dq[static_cast<size_t>(row * c.d + z)] += ds * key(j)[z];
        r.dk[static_cast<size_t>((kv * c.t + j) * c.d + z)] += ds * q.values[static_cast<size_t>(row * c.d + z)];
      }
    }
  }
  return r;
}

TestTensor make_mask(const Case& c) {
  if (c.mask == DType::kBool) return random_integers(DType::kBool, c.mask_shape, 0, 2, 11);
  TestTensor mask = random_tensor(c.mask, c.mask_shape, 11);
  for (size_t i = 0; i < mask.values.size(); i += 5) mask.values[i] = kNever;
  return mask;
}

struct Results {
  std::vector<TestTensor> forward, backward;
};

Results run(const Case& c, DType dtype, DType lse, const std::vector<TestTensor>& qkv, const TestTensor& mask,
            const TestTensor& g, int threads) {
  Params params = {{"causal", int64_t{c.causal}}};
  if (c.scale != 0) params["scale"] = c.scale;
  Results r;
  r.forward = {random_tensor(dtype, {c.b, c.h, c.s, c.e}, 8), random_tensor(lse, {c.b, c.h, c.s}, 8)};
  std::vector<TestTensor> inputs = qkv;
  if (c.mask != DType::kInvalid) inputs.push_back(mask);
  absl::Status status = run_kernel("attention", inputs, r.forward, params, threads);
  EXPECT_TRUE(status.ok()) << status;
  r.backward = {random_tensor(dtype, qkv[0].shape, 8), random_tensor(dtype, qkv[1].shape, 8),
                random_tensor(dtype, qkv[2].shape, 8)};
  inputs.insert(inputs.begin(), g);
  // Without a mask, once left out and once absent.
  if (c.mask == DType::kInvalid && threads > 1) inputs.push_back({DType::kInvalid, {}, {}});
  inputs.insert(inputs.end(), r.forward.begin(), r.forward.end());
  status = run_kernel("attention_grad", inputs, r.backward, params, threads);
  EXPECT_TRUE(status.ok()) << status;
  return r;
}

const Case kCases[] = {
    {1, 2, 2, 5, 5, 3, 4},
    {2, 2, 2, 70, 150, 16, 32},
    {1, 2, 2, 130, 130, 64, 64, true},
    {1, 4, 2, 65, 65, 33, 7, true},
    {1, 6, 1, 9, 200, 8, 8, true},
    {1, 2, 2, 200, 9, 8, 8, true},  // the first queries attend nothing
    {2, 2, 1, 67, 140, 16, 16, false, DType::kBool, {2, 1, 67, 140}},
    {1, 2, 2, 12, 20, 16, 16, false, DType::kBool, {1, 1, 1, 20}},
    {1, 2, 2, 66, 66, 16, 16, true, DType::kF32, {1, 2, 66, 66}},
    {2, 2, 2, 10, 300, 16, 16, false, DType::kF32, {2, 1, 1, 300}, 0.5},
    {1, 2, 2, 10, 12, 4, 4, true, DType::kBool, {1, 1, 10, 12}, -0.75},
    {1, 1, 1, 1, 1, 1, 1, true},
};

TEST(Attention, ForwardAndGradients_EqualLoops) {
  for (const Case& c : kCases) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      const std::string what = cat(dtype_name(dtype), " b", c.b, " h", c.h, "/", c.kv, " s", c.s, " t", c.t, " d", c.d,
                                   " e", c.e, c.causal ? " causal" : "", " mask ", dtype_name(c.mask));
      const std::vector<TestTensor> qkv = {random_tensor(dtype, {c.b, c.h, c.s, c.d}, 1),
                                           random_tensor(dtype, {c.b, c.kv, c.t, c.d}, 2),
                                           random_tensor(dtype, {c.b, c.kv, c.t, c.e}, 3)};
      const TestTensor g = random_tensor(dtype, {c.b, c.h, c.s, c.e}, 4), mask = make_mask(c);
      const Expected e = reference(c, qkv[0], qkv[1], qkv[2], mask, g);
      const double tolerance = dtype == DType::kF64 ? 1e-11 : tolerance_of(dtype);
      const DType lse = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      const Results one = run(c, dtype, lse, qkv, mask, g, 1);
      expect_close(one.forward[0], e.out, tolerance, "out " + what);
      expect_close(one.forward[1], e.lse, dtype == DType::kF64 ? 1e-11 : 2e-5, "lse " + what);
      expect_close(one.backward[0], e.dq, tolerance, "dq " + what);
      expect_close(one.backward[1], e.dk, tolerance, "dk " + what);
      expect_close(one.backward[2], e.dv, tolerance, "dv " + what);
      // One pass or two, one thread or many: the same bits.
      const Results many = run(c, dtype, lse, qkv, mask, g, 5);
      EXPECT_EQ(one.forward[0].values, many.forward[0].values) << what;
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(one.backward[i].values, many.backward[i].values) << what << " gradient " << i;
    }
  }
}

// A mask of the type's lowest number, of a padded query: its keys count alike, in the gradients, too.
TEST(Attention, RowsOfWhichEveryKeyIsPadding) {
  constexpr int64_t kKeys = 100;
  const Case c{1, 1, 1, 2, kKeys, 4, 4, false, DType::kF32, {1, 1, 2, kKeys}};
  const std::vector<TestTensor> qkv = {random_tensor(DType::kF32, {1, 1, 2, 4}, 1),
                                       random_tensor(DType::kF32, {1, 1, kKeys, 4}, 2),
                                       random_tensor(DType::kF32, {1, 1, kKeys, 4}, 3)};
  TestTensor g = random_tensor(DType::kF32, {1, 1, 2, 4}, 4), mask = make_mask(c);
  std::fill(mask.values.begin(), mask.values.begin() + kKeys, std::numeric_limits<float>::lowest());
  std::fill(g.values.begin() + 4, g.values.end(), 0.0);  // the first row alone
  const Results r = run(c, DType::kF32, DType::kF32, qkv, mask, g, 2);
  for (size_t e = 0; e < 4; ++e) {
    double mean = 0;
    for (size_t j = 0; j < kKeys; ++j) {
      mean += qkv[2].values[j * 4 + e] / kKeys;
      EXPECT_NEAR(r.backward[2].values[j * 4 + e], g.values[e] / kKeys, 1e-3 / kKeys) << j;
    }
    EXPECT_NEAR(r.forward[0].values[e], mean, 1e-5);
  }
}

TEST(Attention, LseInF32_ServesF64) {
  const Case c{1, 2, 2, 20, 30, 8, 8, true};
  const std::vector<TestTensor> qkv = {random_tensor(DType::kF64, {1, 2, 20, 8}, 1),
                                       random_tensor(DType::kF64, {1, 2, 30, 8}, 2),
                                       random_tensor(DType::kF64, {1, 2, 30, 8}, 3)};
  const TestTensor g = random_tensor(DType::kF64, {1, 2, 20, 8}, 4);
  const Expected e = reference(c, qkv[0], qkv[1], qkv[2], {}, g);
  const Results r = run(c, DType::kF64, DType::kF32, qkv, {}, g, 2);
  expect_close(r.forward[0], e.out, 1e-12);
  expect_close(r.backward[1], e.dk, 1e-6);
}

TEST(Attention, LargeScores_DoNotOverflow) {
  const Case c{1, 1, 1, 70, 130, 4, 4, false, DType::kInvalid, {}, 40};
  std::vector<TestTensor> qkv = {random_tensor(DType::kF32, {1, 1, 70, 4}, 1),
                                 random_tensor(DType::kF32, {1, 1, 130, 4}, 2),
                                 random_tensor(DType::kF32, {1, 1, 130, 4}, 3)};
  for (double& x : qkv[0].values) x *= 8;
  const TestTensor g = random_tensor(DType::kF32, {1, 1, 70, 4}, 4);
  const Expected e = reference(c, qkv[0], qkv[1], qkv[2], {}, g);
  expect_close(run(c, DType::kF32, DType::kF32, qkv, {}, g, 2).forward[0], e.out, 1e-3);
}

TEST(Attention, Nan_ComesThrough) {
  const Case c{1, 1, 1, 3, 40, 4, 4};
  std::vector<TestTensor> qkv = {random_tensor(DType::kF32, {1, 1, 3, 4}, 1),
                                 random_tensor(DType::kF32, {1, 1, 40, 4}, 2),
                                 random_tensor(DType::kF32, {1, 1, 40, 4}, 3)};
  qkv[0].values[5] = std::numeric_limits<double>::quiet_NaN();
  const Results r = run(c, DType::kF32, DType::kF32, qkv, {}, random_tensor(DType::kF32, {1, 1, 3, 4}, 4), 1);
  EXPECT_FALSE(std::isnan(r.forward[0].values[0]));
  EXPECT_TRUE(std::isnan(r.forward[0].values[4]));
  EXPECT_TRUE(std::isnan(r.forward[1].values[1]));
}

TEST(Attention, Misfit_IsRefused) {
  std::vector<TestTensor> out = {zeros(DType::kF32, {1, 3, 4, 8}), zeros(DType::kF32, {1, 3, 4})};
  const TestTensor q = zeros(DType::kF32, {1, 3, 4, 8}), k = zeros(DType::kF32, {1, 2, 4, 8});
  EXPECT_EQ(run_kernel("attention", {q, k, k}, out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run_kernel("attention", {q, q, q, zeros(DType::kBool, {1, 1, 4, 5})}, out).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run_kernel("attention", {q, q, q, zeros(DType::kI32, {1, 1, 4, 4})}, out).code(),
            absl::StatusCode::kInvalidArgument);
}

// The largest error of e^x for x <= 0, in units of the last place; with --all over every float in [-88, -2^-14].
double worst_exponential(const TileOps<float>& ops) {
  const uint32_t step = sample_or_all(1021u, 1u);
  double worst = 0;
  std::vector<float> x, y;
  for (uint32_t bits = 0xb8800000u; bits < 0xc2b00000u;) {
    x.clear();
    for (; x.size() < 1 << 16 && bits < 0xc2b00000u; bits += step) x.push_back(std::bit_cast<float>(bits));
    y = x;
    ops.exp_row(y.data(), static_cast<int64_t>(y.size()), 1.0f, 0.0f);
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      if (exact < 1.2e-38) continue;
      const double unit = std::ldexp(1.0, std::ilogb(exact) - 23);
      worst = std::max(worst, std::abs(y[i] - exact) / unit);
    }
  }
  return worst;
}

// Each instruction set that this processor has gives the same as the plainest, but for rounding.
TEST(TileOps, AllSets_Agree) {
  const auto close = [](const TileOps<float>& ops) {
    for (int64_t m : {1, 5, 13, 25}) {
      for (int64_t n : {1, 7, 16, 33, 70}) {
        const int64_t k = 19;
        const TestTensor a = random_tensor(DType::kF32, {m, k}, 1), b = random_tensor(DType::kF32, {k, n}, 2);
        std::vector<float> fa(a.values.begin(), a.values.end()), fb(b.values.begin(), b.values.end()),
            c(static_cast<size_t>(m * n), 1.0f);
        ops.gemm(c.data(), n, fa.data(), k, 1, fb.data(), n, m, n, k, true);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double sum = 1;
            for (int64_t z = 0; z < k; ++z)
              sum += a.values[static_cast<size_t>(i * k + z)] * b.values[static_cast<size_t>(z * n + j)];
            EXPECT_NEAR(c[static_cast<size_t>(i * n + j)], sum, 1e-4);
          }
        }
      }
    }
    std::vector<float> row;
    for (int i = 0; i < 1001; ++i) row.push_back(static_cast<float>(i - 900) / 10);
    row[3] = -std::numeric_limits<float>::infinity();
    std::vector<float> y = row;
    double sum = 0;
    const float total = ops.exp_row(y.data(), 1001, 1.0f, 0.5f);
    for (size_t i = 0; i < row.size(); ++i) {
      const double expected = std::exp(static_cast<double>(row[i] - 0.5f));
      sum += expected;
      EXPECT_NEAR(y[i], expected < 1.2e-38 ? 0 : expected, expected * 3e-7) << row[i];
    }
    EXPECT_NEAR(total, sum, sum * 1e-6);
    EXPECT_LT(worst_exponential(ops), 1.2);
    EXPECT_EQ(ops.max_row(row.data(), 1001), 10.0f);
    EXPECT_NEAR(
        ops.dot_row(y.data() + 850, y.data() + 850, 51),
        [&] {
          double s = 0;
          for (size_t i = 850; i < 901; ++i) s += static_cast<double>(y[i]) * y[i];
          return s;
        }(),
        1e-3);
  };
  close(kTileOpsGenericF32);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) close(kTileOpsAvx2F32);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    close(kTileOpsAvx512F32);
}

// q, k and v of one product, [b, s, (h + 2 kv) d], and a dense result.
AttentionShape in_place(int64_t b, int64_t h, int64_t kv, int64_t s) {
  constexpr int64_t kD = 8;
  const int64_t row = (h + 2 * kv) * kD;
  AttentionShape a{.batch = b, .heads = h, .kv_heads = kv, .s = s, .t = s, .d = kD, .e = kD};
  a.q = a.dq = {0, s * row, kD, row};
  a.k = a.dk = {h * kD, s * row, kD, row};
  a.v = a.dv = {(h + kv) * kD, s * row, kD, row};
  a.out = a.g = {0, h * s * kD, s * kD, kD};
  return a;
}

TEST(KernelAttention_Parts, HaveEachRowOfTheWholeOnce) {
  const AttentionShape whole = in_place(6, 12, 4, 5);
  for (const int64_t count : {1, 2, 3, 6, 12, 24}) {
    const std::vector<AttentionPart> parts = attention_parts(whole, count);
    ASSERT_EQ(std::ssize(parts), count);
    std::set<int64_t> rows;
    for (const AttentionPart& part : parts) {
      const AttentionShape& a = part.shape;
      ASSERT_EQ(a.group(), whole.group());
      for (int64_t n = 0; n < a.batch * a.heads; ++n) {
        const int64_t b = n / a.heads, h = n % a.heads;
        // Row sums lie as those of the whole; which head and sample that is, the first row says.
        const int64_t sum = part.first_row + (b * whole.heads + h) * whole.s, of = sum / whole.s % whole.heads,
                      sample = sum / whole.s / whole.heads;
        EXPECT_TRUE(rows.insert(sum).second);
        EXPECT_EQ(a.q.at(b, h, 3), whole.q.at(sample, of, 3));
        EXPECT_EQ(a.dq.at(b, h, 3), whole.dq.at(sample, of, 3));
        EXPECT_EQ(a.out.at(b, h, 3), whole.out.at(sample, of, 3));
        EXPECT_EQ(a.g.at(b, h, 3), whole.g.at(sample, of, 3));
        const int64_t kv = h / a.group(), of_kv = of / whole.group();
        EXPECT_EQ(a.k.at(b, kv, 3), whole.k.at(sample, of_kv, 3));
        EXPECT_EQ(a.v.at(b, kv, 3), whole.v.at(sample, of_kv, 3));
        EXPECT_EQ(a.dk.at(b, kv, 3), whole.dk.at(sample, of_kv, 3));
        EXPECT_EQ(a.dv.at(b, kv, 3), whole.dv.at(sample, of_kv, 3));
      }
    }
    EXPECT_EQ(std::ssize(rows), whole.batch * whole.heads);
  }
}

}  // namespace
}  // namespace partita::runtime
