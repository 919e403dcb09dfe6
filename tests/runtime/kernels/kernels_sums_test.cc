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

}  // namespace
}  // namespace partita::runtime
