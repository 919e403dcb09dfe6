// Sums in a fixed order.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/runtime/support/kernel_harness.h"

namespace partita::runtime {
namespace {

TEST(Kernels, AccumulateTree_IsABalancedTreeStepAfterStep) {
  constexpr int64_t kCount = 2000;
  const Operand operand{.dtype = DType::kF32, .shape = {kCount}};
  for (int64_t terms : {1, 2, 4, 8}) {
    const Step step{.kind = StepKind::kLibrary,
                    .name = "accumulate_tree",
                    .operands = {operand, operand, operand},
                    .inputs = 2,
                    .params = {{"micro_batches", terms}}};
    auto kernel = prepare_kernel(step, {.threads = 2});
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    std::mt19937 rng(1);
    std::normal_distribution<float> draw;
    for (int again = 0; again < 2; ++again) {
      std::vector<float> sum(kCount, 0.0F);
      std::vector<std::vector<float>> level;
      for (int64_t m = 0; m < terms; ++m) {
        std::vector<float>& term = level.emplace_back(kCount);
        for (float& x : term) x = draw(rng);
        auto* total = reinterpret_cast<std::byte*>(sum.data());
        (*kernel)->run(std::array{total, reinterpret_cast<std::byte*>(term.data()), total});
      }
      for (; level.size() > 1; level.resize(level.size() / 2)) {
        for (size_t k = 0; k + 1 < level.size(); k += 2) {
          for (int64_t i = 0; i < kCount; ++i)
            level[k / 2][static_cast<size_t>(i)] =
                level[k][static_cast<size_t>(i)] + level[k + 1][static_cast<size_t>(i)];
        }
      }
      EXPECT_EQ(sum, level[0]) << terms << " terms";
    }
  }
}

// A block's sum does not depend on the blocks beside it, nor on the threads.
TEST(Kernels, BlockSquares_OfPartsAreThoseOfTheWhole) {
  constexpr int64_t kBefore = 3, kBlocks = 4, kBlock = 20001;
  std::mt19937 rng(2);
  std::normal_distribution<double> draw;
  TestTensor whole = zeros(DType::kF32, {kBefore, kBlocks, kBlock});
  for (double& x : whole.values) x = static_cast<float>(draw(rng));
  const TestTensor all = run_one("block_squares", {whole}, zeros(DType::kF64, {kBlocks}), {}, 2);
  for (int64_t b = 0; b < kBlocks; ++b) {
    TestTensor part = zeros(DType::kF32, {kBefore, 1, kBlock});
    double expected = 0;
    for (int64_t a = 0; a < kBefore; ++a) {
      for (int64_t i = 0; i < kBlock; ++i) {
        const double x = whole.values[static_cast<size_t>((a * kBlocks + b) * kBlock + i)];
        part.values[static_cast<size_t>(a * kBlock + i)] = x;
        expected += x * x;
      }
    }
    const TestTensor alone = run_one("block_squares", {part}, zeros(DType::kF64, {1}), {}, 1);
    EXPECT_EQ(alone.values[0], all.values[static_cast<size_t>(b)]) << b;
    EXPECT_NEAR(alone.values[0], expected, 1e-9 * expected);
  }
}

// An inner dimension of [groups, blocks, block], and what has some of the blocks.
struct Inner {
  int64_t groups, blocks, block;
};

// Of a [rows, inner], or of its transpose, the blocks [first, first + count).
TestTensor blocks_of(const TestTensor& x, const Inner& inner, int64_t first, int64_t count, bool transposed) {
  const int64_t k = inner.groups * inner.blocks * inner.block, rows = x.count() / k;
  TestTensor part = zeros(x.dtype, {rows, inner.groups * count * inner.block});
  if (transposed) std::swap(part.shape[0], part.shape[1]);
  size_t to = 0;
  const auto has = [&](int64_t z) {
    return z / inner.block % inner.blocks - first >= 0 && z / inner.block % inner.blocks < first + count;
  };
  for (int64_t at = 0; at < x.count(); ++at) {
    if (has(transposed ? at / rows : at % k)) part.values[to++] = x.values[static_cast<size_t>(at)];
  }
  return part;
}

// Ranks have some of the blocks of an inner dimension, and some of the columns of the result; their sums as a tree are
// the whole product to the bit, whatever the transpositions and the threads.
TEST(Kernels, OrderedMatmul_OfPartsAddsUpToTheWhole) {
  constexpr int64_t kColumns = 150, kKept = 37;
  std::mt19937 rng(3);
  std::normal_distribution<double> draw;
  for (const auto& [inner, rows] : {std::pair{Inner{1, 4, 130}, int64_t{5}},
                                    {Inner{3, 4, 7}, 270},
                                    {Inner{2, 2, 400}, 30},
                                    {Inner{2, 1, 300}, 5}}) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool ta = transposed % 2 != 0, tb = transposed / 2 != 0;
      const int64_t k = inner.groups * inner.blocks * inner.block;
      TestTensor a = zeros(DType::kF32, ta ? std::vector{k, rows} : std::vector{rows, k});
      TestTensor b = zeros(DType::kF32, tb ? std::vector{kColumns, k} : std::vector{k, kColumns});
      for (double& x : a.values) x = static_cast<float>(draw(rng));
      for (double& x : b.values) x = static_cast<float>(draw(rng));
      const std::map<std::string, Param> params = {
          {"transpose_a", int64_t{ta}}, {"transpose_b", int64_t{tb}}, {"block", inner.block}, {"groups", inner.groups}};
      auto product = [&](const TestTensor& x, const TestTensor& y, int64_t columns, int threads) {
        return run_one("matmul", {x, y}, zeros(DType::kF32, {rows, columns}), params, threads);
      };
      const TestTensor whole = product(a, b, kColumns, 2);
      for (int64_t ranks = 1; ranks <= inner.blocks; ranks *= 2) {
        std::vector<std::vector<double>> terms;
        const int64_t count = inner.blocks / ranks;
        for (int64_t r = 0; r < ranks; ++r)
          terms.push_back(product(blocks_of(a, inner, r * count, count, ta), blocks_of(b, inner, r * count, count, !tb),
                                  kColumns, 1)
                              .values);
        for (; terms.size() > 1; terms.resize(terms.size() / 2)) {
          for (size_t t = 0; t + 1 < terms.size(); t += 2) {
            for (size_t i = 0; i < terms[t].size(); ++i)
              terms[t / 2][i] = static_cast<float>(terms[t][i]) + static_cast<float>(terms[t + 1][i]);
          }
        }
        EXPECT_EQ(terms[0], whole.values) << ranks << " ranks, " << ta << tb;
      }
      TestTensor columns = zeros(DType::kF32, tb ? std::vector{kKept, k} : std::vector{k, kKept});
      for (int64_t z = 0; z < k; ++z) {
        for (int64_t j = 0; j < kKept; ++j)
          columns.values[static_cast<size_t>(tb ? j * k + z : z * kKept + j)] =
              b.values[static_cast<size_t>(tb ? (j + 64) * k + z : z * kColumns + j + 64)];
      }
      const TestTensor kept = product(a, columns, kKept, 1);
      for (int64_t i = 0; i < rows * kKept; ++i)
        EXPECT_EQ(kept.values[static_cast<size_t>(i)],
                  whole.values[static_cast<size_t>(i / kKept * kColumns + i % kKept + 64)]);
      double first = 0;
      for (int64_t z = 0; z < k; ++z)
        first +=
            a.values[static_cast<size_t>(ta ? z * rows : z)] * b.values[static_cast<size_t>(tb ? z : z * kColumns)];
      EXPECT_NEAR(whole.values[0], first, 1e-3);
    }
  }
}

}  // namespace
}  // namespace partita::runtime
