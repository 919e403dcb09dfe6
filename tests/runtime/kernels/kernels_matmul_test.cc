#include "runtime/kernels/onednn.h"
#include "runtime/kernels/tile_ops.h"
#include "tests/runtime/support/kernel_harness.h"

namespace partita::runtime {
namespace {

struct Case {
  std::vector<int64_t> batch_a, batch_b;
  int64_t m, n, k;
};

std::vector<int64_t> with(std::vector<int64_t> batch, int64_t x, int64_t y) {
  batch.insert(batch.end(), {x, y});
  return batch;
}

// C = A B over broadcast batches, in double.
TestTensor reference(const Case& c, const TestTensor& a, const TestTensor& b, bool ta, bool tb) {
  std::vector<int64_t> batch;
  for (size_t d = 0; d < c.batch_a.size(); ++d) batch.push_back(std::max(c.batch_a[d], c.batch_b[d]));
  TestTensor out = zeros(a.dtype, with(batch, c.m, c.n));
  const int64_t batches = product(batch);
  for (int64_t p = 0; p < batches; ++p) {
    int64_t rest = p, at_a = 0, at_b = 0, stride_a = c.m * c.k, stride_b = c.k * c.n;
    for (size_t d = batch.size(); d-- > 0; rest /= batch[d]) {
      at_a += (c.batch_a[d] == 1 ? 0 : rest % batch[d]) * stride_a;
      at_b += (c.batch_b[d] == 1 ? 0 : rest % batch[d]) * stride_b;
      stride_a *= c.batch_a[d];
      stride_b *= c.batch_b[d];
    }
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = 0;
        for (int64_t z = 0; z < c.k; ++z) {
          sum += a.values[static_cast<size_t>(at_a + (ta ? z * c.m + i : i * c.k + z))] *
                 b.values[static_cast<size_t>(at_b + (tb ? j * c.k + z : z * c.n + j))];
        }
        out.values[static_cast<size_t>((p * c.m + i) * c.n + j)] = sum;
      }
    }
  }
  return out;
}

class MatmulTypes : public ::testing::TestWithParam<DType> {};

TEST_P(MatmulTypes, AllLayouts_EqualLoops) {
  const DType dtype = GetParam();
  const Case cases[] = {{{}, {}, 5, 7, 3},          {{}, {}, 65, 70, 130},
                        {{}, {}, 1, 33, 300},       {{2, 3}, {2, 3}, 4, 5, 6},
                        {{2, 3}, {1, 1}, 9, 17, 8}, {{1, 3}, {2, 3}, 4, 16, 2},
                        {{2, 1}, {2, 3}, 4, 5, 6},  {{2, 1, 2}, {1, 3, 2}, 3, 4, 5},
                        {{4}, {1}, 1, 1, 1},        {{1, 1}, {2, 2}, 3, 2, 40},
                        {{}, {}, 9, 32, 11},        {{}, {}, 16, 5, 9},
                        {{8}, {8}, 20, 33, 30}};
  for (const Case& c : cases) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool ta = transposed & 1, tb = transposed & 2;
      auto make = [&](std::vector<int64_t> shape, unsigned seed) {
        return is_float(dtype) ? random_tensor(dtype, std::move(shape), seed)
                               : random_integers(dtype, std::move(shape), 0, 5, seed);
      };
      const TestTensor a = make(ta ? with(c.batch_a, c.k, c.m) : with(c.batch_a, c.m, c.k), 1),
                       b = make(tb ? with(c.batch_b, c.n, c.k) : with(c.batch_b, c.k, c.n), 2);
      const TestTensor expected = reference(c, a, b, ta, tb);
      const TestTensor found = run_one("matmul", {a, b}, zeros(dtype, expected.shape),
                                       {{"transpose_a", int64_t{ta}}, {"transpose_b", int64_t{tb}}});
      expect_close(found, expected.values, tolerance_of(dtype), shape_text(a.shape) + shape_text(b.shape));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MatmulTypes,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32,
                                           DType::kI64, DType::kI16));

TEST(Matmul, Epilogues_ApplyInOrder) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Case c{{2}, {1}, 5, 37, 11};
    const TestTensor a = random_tensor(dtype, {2, 5, 11}, 1), b = random_tensor(dtype, {1, 11, 37}, 2),
                     bias = random_tensor(dtype, {37}, 3), start = random_tensor(dtype, {2, 5, 37}, 4);
    const TestTensor product = reference(c, a, b, false, false);
    struct Epilogue {
      const char* name;
      bool bias, accumulate;
      double (*activate)(double);
    };
    const Epilogue epilogues[] = {
        {"bias", true, false, [](double x) { return x; }},
        {"accumulate", false, true, [](double x) { return x; }},
        {"bias+accumulate", true, true, [](double x) { return x; }},
        {"bias+relu", true, false, [](double x) { return std::max(x, 0.0); }},
        {"bias+gelu_erf", true, false, [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }},
        {"gelu_tanh", false, false,
         [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }}};
    for (const Epilogue& e : epilogues) {
      std::vector<double> expected;
      for (size_t i = 0; i < product.values.size(); ++i)
        expected.push_back(
            e.activate(product.values[i] + (e.bias ? bias.values[i % 37] : 0) + (e.accumulate ? start.values[i] : 0)));
      std::vector<TestTensor> inputs = {a, b};
      if (e.bias) inputs.push_back(bias);
      expect_close(run_one("matmul", inputs, start, {{"epilogue", std::string(e.name)}}), expected, tolerance_of(dtype),
                   e.name);
    }
  }
}

TEST(Matmul, ProductsOfBf16_AreWidenedWhereTheProcessorsOwnAreSlower) {
  using enum dnnl::cpu_isa;
  for (bool intel : {false, true}) {
    EXPECT_TRUE(is_bf16_slow(avx512_core, intel));
    EXPECT_TRUE(is_bf16_slow(avx512_core_vnni, intel));
    EXPECT_EQ(is_bf16_slow(avx512_core_bf16, intel), intel);
    EXPECT_EQ(is_bf16_slow(avx512_core_fp16, intel), intel);
    EXPECT_FALSE(is_bf16_slow(avx512_core_amx, intel));
    EXPECT_FALSE(is_bf16_slow(avx2_vnni_2, intel));
  }
}

TEST(Matmul, EmptyInner_GivesZeros) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const TestTensor a = zeros(dtype, {2, 0}), b = zeros(dtype, {0, 3}), start = random_tensor(dtype, {2, 3}, 1),
                     bias = random_tensor(dtype, {3}, 2);
    expect_close(run_one("matmul", {a, b}, start), std::vector<double>(6, 0), 0);
    expect_close(run_one("matmul", {a, b}, start, {{"epilogue", std::string("accumulate")}}), start.values, 0);
    std::vector<double> twice = bias.values;
    twice.insert(twice.end(), bias.values.begin(), bias.values.end());
    expect_close(run_one("matmul", {a, b, bias}, start, {{"epilogue", std::string("bias")}}), twice, 0);
  }
}

TEST(Matmul, Threads_GiveTheSameBits) {
  // With AVX-512 the library's kernels multiply f32.
  for (DType dtype : has_avx512() ? std::vector{DType::kF64} : std::vector{DType::kF32, DType::kF64}) {
    for (const int64_t columns : {150, 512}) {
      for (int transposed = 0; transposed < 4; ++transposed) {
        const bool ta = transposed & 1, tb = transposed & 2;
        const TestTensor a = random_tensor(dtype, ta ? Shape{512, 301} : Shape{301, 512}, 1),
                         b = random_tensor(dtype, tb ? Shape{columns, 512} : Shape{512, columns}, 2);
        const auto multiply = [&](int threads) {
          return run_one("matmul", {a, b}, zeros(dtype, {301, columns}),
                         {{"transpose_a", int64_t{ta}}, {"transpose_b", int64_t{tb}}}, threads)
              .values;
        };
        const std::vector<double> one = multiply(1);
        EXPECT_EQ(multiply(2), one) << columns << " " << transposed;
        EXPECT_EQ(multiply(5), one) << columns << " " << transposed;
      }
    }
  }
}

// Few rows and few columns, of more than is packed at a time of the inner dimension; what fills no panel.
TEST(Matmul, LargeProducts_EqualLoops) {
  const std::pair<DType, Case> cases[] = {{DType::kF64, {{}, {}, 19, 530, 2311}},
                                          {DType::kF64, {{}, {}, 530, 19, 2311}},
                                          {DType::kF32, {{}, {}, 131, 390, 301}},
                                          {DType::kF32, {{}, {}, 390, 131, 301}}};
  for (const auto& [dtype, c] : cases) {
    const TestTensor start = random_tensor(dtype, {c.m, c.n}, 3);
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool ta = transposed & 1, tb = transposed & 2;
      const TestTensor a = random_tensor(dtype, ta ? Shape{c.k, c.m} : Shape{c.m, c.k}, 1),
                       b = random_tensor(dtype, tb ? Shape{c.n, c.k} : Shape{c.k, c.n}, 2);
      std::vector<double> expected = reference(c, a, b, ta, tb).values;
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += start.values[i];
      const TestTensor found = run_one(
          "matmul", {a, b}, start,
          {{"transpose_a", int64_t{ta}}, {"transpose_b", int64_t{tb}}, {"epilogue", std::string("accumulate")}}, 3);
      expect_close(found, expected, 10 * tolerance_of(dtype), std::to_string(transposed));
    }
  }
}

// More columns than are packed at a time. C v = A (B v), of integers: what is wrong in a row of C shows in its element.
TEST(Matmul, ManyColumns_AreThoseOfTheOperands) {
  constexpr size_t kRows = 1090, kColumns = 1060, kInner = 1031;
  const TestTensor a = random_integers(DType::kF64, {kRows, kInner}, -8, 8, 1),
                   b = random_integers(DType::kF64, {kInner, kColumns}, -8, 8, 2),
                   v = random_integers(DType::kF64, {kColumns}, -1000, 1000, 3);
  const TestTensor c = run_one("matmul", {a, b}, zeros(DType::kF64, {kRows, kColumns}), {}, 3);
  const auto times = [](const TestTensor& matrix, const std::vector<double>& by) {
    std::vector<double> sums(matrix.values.size() / by.size());
    for (size_t i = 0; i < matrix.values.size(); ++i) sums[i / by.size()] += matrix.values[i] * by[i % by.size()];
    return sums;
  };
  EXPECT_EQ(times(c, v.values), times(a, times(b, v.values)));
}

TEST(Matmul, AFewRowsByATransposedMatrix_EqualLoopsWithAnyNumberOfThreads) {
  for (int64_t rows : {16, 32}) {
    const Case c{{}, {}, rows, 131, 517};
    const TestTensor a = random_tensor(DType::kF32, {c.m, c.k}, 1), b = random_tensor(DType::kF32, {c.n, c.k}, 2);
    std::vector<TestTensor> found;
    for (int threads : {1, 2, 3})
      found.push_back(
          run_one("matmul", {a, b}, zeros(DType::kF32, {c.m, c.n}), {{"transpose_b", int64_t{1}}}, threads));
    expect_close(found[0], reference(c, a, b, false, true).values, tolerance_of(DType::kF32), "one thread");
    EXPECT_EQ(found[1].values, found[0].values);
    EXPECT_EQ(found[2].values, found[0].values);
  }
}

TEST(Matmul, Misfit_IsRefused) {
  std::vector<TestTensor> out = {zeros(DType::kF32, {2, 3})};
  EXPECT_EQ(run_kernel("matmul", {zeros(DType::kF32, {2, 4}), zeros(DType::kF32, {5, 3})}, out).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run_kernel("matmul", {zeros(DType::kF32, {2, 4}), zeros(DType::kF64, {4, 3})}, out).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run_kernel("matmul", {zeros(DType::kF32, {2, 4}), zeros(DType::kF32, {4, 3})}, out,
                       {{"epilogue", std::string("wish")}})
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run_kernel("matmul", {zeros(DType::kF32, {2, 4})}, out).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace partita::runtime
