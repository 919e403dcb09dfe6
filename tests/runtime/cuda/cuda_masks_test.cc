// What runs around cuDNN's attention where there is a mask, thread by thread on the host.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/support/cuda_kernels_host.h"

#include "runtime/cuda/kernels/masks.cu"

namespace partita::runtime {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <typename F>
void on_grid(F f) {
  HostGrid::instance().launch({3}, 32, f);
}

template <typename T>
std::vector<float> bias_of(std::vector<T> mask, MaskKind kind) {
  std::vector<float> bias(mask.size(), NAN);
  ScoresDevice z{};
  z.mask = kind;
  on_grid([&] { mask_bias(mask.data(), bias.data(), static_cast<int64_t>(mask.size()), z); });
  return bias;
}

TEST(CudaMasks, WhatIsHidden_GetsAFiniteBiasBelowAllOthers) {
  EXPECT_EQ(bias_of<uint8_t>({1, 0, 1}, kBoolMask), (std::vector<float>{0, -1e30f, 0}));
  const float lowest = std::numeric_limits<float>::lowest();
  EXPECT_EQ(bias_of<float>({0.5f, -kInf, lowest, -3}, kF32Mask), (std::vector<float>{0.5f, -1e30f, -1e28f, -3}));
  EXPECT_EQ(bias_of<double>({0.5, -INFINITY}, kF64Mask), (std::vector<float>{0.5f, -1e30f}));
  EXPECT_TRUE(std::isnan(bias_of<float>({NAN}, kF32Mask)[0]));
}

TEST(CudaMasks, AQueryWithoutKeys_IsZeroAndOfNoWeight) {
  // The log-sums of five scores that are hidden, of some that are not, and of a row that is lost to NaN.
  std::vector<float> lse = {-1e30f + std::log(5.0f), 2.5f, -1e28f, NAN}, shifts(4);
  std::vector<uint16_t> out(4 * 3, 7);
  on_grid([&] { clear_lost_rows(lse.data(), out.data(), 4, 3); });
  EXPECT_EQ(lse[0], -kInf);
  EXPECT_EQ(lse[1], 2.5f);
  EXPECT_EQ(lse[2], -1e28f);
  EXPECT_TRUE(std::isnan(lse[3]));
  EXPECT_EQ(out, (std::vector<uint16_t>{0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7}));
  on_grid([&] { shift_lost_rows(lse.data(), shifts.data(), 4); });
  EXPECT_EQ(std::exp(-1e30f - shifts[0]), 0);
  EXPECT_EQ(shifts[1], 2.5f);
  EXPECT_TRUE(std::isnan(shifts[3]));
}

// More elements than threads.
TEST(CudaMasks, EveryElementIsVisited) {
  std::vector<uint8_t> mask(1000, 0);
  EXPECT_EQ(bias_of(mask, kBoolMask), std::vector<float>(1000, -1e30f));
}

}  // namespace
}  // namespace partita::runtime
