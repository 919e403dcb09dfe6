// What `doctor --calibrate --target cuda:…` measures, on the CUDA module's device as it is and a CUDA runtime that is
// this machine: times mean nothing there, but every kernel, copy and collective has to run.
#ifdef PARTITA_STAND_INS
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partitioner/planner/rates/kernel_time.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tools/calibrate/calibrate.h"
#include "tools/calibrate/gpu_rates.h"
#include "tools/calibrate/link_rates.h"
#include "tools/machine/local_gpus.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Gt;
using testing::Le;
using testing::Not;
using testing::Pair;

RankTeam team_of(int ranks) {
  RankTeam team = RankTeam::on_gpus(ranks, "cuda:sm_90");
  team.open_device = open_cuda_on_host;
  team.round_seconds = 1e-4, team.most_seconds = 0.1;
  return team;
}

DeviceProfile h100() { return *ProfileLibrary::load()->device("H100-80GB"); }

const ConvolutionSizes kConvolutions = {
    .dtype = DType::kBF16, .batch = 1, .plane = 4, .usual = 8, .channels = {4, 8}, .planes = {2}};

TEST(CalibrateGpu_Kernels, AreAllMeasured) {
  GpuSizes sizes;
  sizes.large = 64, sizes.contractions = {16, 64};
  sizes.batch = 1, sizes.heads = 1, sizes.length = 16, sizes.head_sizes = {32};
  sizes.copies = {1000, 100'000};
  sizes.launches = 3;
  sizes.convolutions = kConvolutions;
  DeviceProfile device = h100();
  const DeviceProfile before = device;
  std::string said;
  auto noise = measure_gpu(team_of(1), sizes, device, [&](const std::string& text) { said += text; });
  ASSERT_TRUE(noise.ok()) << noise.status();
  const auto share = AllOf(Gt(0), Le(1));
  EXPECT_THAT(device.matrix.points, testing::ElementsAre(Pair(16, share), Pair(64, share)));
  EXPECT_THAT(device.memory.points, testing::ElementsAre(Pair(1000, share), Pair(100'000, share)));
  EXPECT_THAT(device.attention_flash.points, testing::ElementsAre(Pair(32, share)));
  EXPECT_THAT(device.attention_math.points, Each(Pair(Gt(0), share)));
  EXPECT_THAT(device.flops, Each(Gt(0)));
  EXPECT_NE(device.flops, before.flops);
  EXPECT_GT(device.attention_backward, 0);
  EXPECT_GT(device.launch_seconds, 0);
  EXPECT_GT(device.host_bandwidth, 0);
  EXPECT_EQ(device.processors, before.processors);
  EXPECT_THAT(device.convolution.points, testing::ElementsAre(Pair(4, share), Pair(8, share)));
  EXPECT_THAT(device.convolution_plane.points, Not(testing::IsEmpty()));
  EXPECT_THAT(said, testing::IsEmpty());
}

// What one product took is what the cost model says of it afterwards: curves, tiles and launches put together again.
TEST(CalibrateGpu_Products, ArePredictedAsMeasured) {
  KernelTimes times(team_of(1));
  auto before = times.product_rate(DType::kBF16, 128, 128, 64);
  GpuSizes sizes;
  sizes.large = 128, sizes.contractions = {64};
  sizes.batch = 1, sizes.heads = 1, sizes.length = 16, sizes.head_sizes = {32}, sizes.copies = {1000},
  sizes.launches = 2, sizes.convolutions = kConvolutions;
  DeviceProfile device = h100();
  ASSERT_TRUE(before.ok() && measure_gpu(team_of(1), sizes, device, [](const std::string&) {}).ok());
  auto after = times.product_rate(DType::kBF16, 128, 128, 64);
  ASSERT_TRUE(after.ok()) << after.status();
  const double flops = 2.0 * 128 * 128 * 64, predicted = matrix_time(device, Precision::kBf16, 1, 128, 128, 64, 2);
  EXPECT_GT(predicted, 0.2 * flops / std::max(*before, *after));
  EXPECT_LT(predicted, 5 * flops / std::min(*before, *after));
}

TEST(CalibrateGpu_Links, AreMeasuredBetweenRanks) {
  auto fit = measure_links(JoinedRanks::of(team_of(2)), {.bytes = {4096, 65536}, .product = 16});
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_GT(fit->link.bandwidth, 0);
  EXPECT_GT(fit->link.latency, 0);
  EXPECT_GE(fit->link.wait_seconds, 0);
}

TEST(CalibrateGpu_FailingRank, EndsAll) {
  RankTeam team = team_of(2);
  team.open_device = [](const runtime::Program& program, int rank) -> absl::StatusOr<std::unique_ptr<runtime::Device>> {
    if (rank == 1) return absl::ResourceExhaustedError("no memory");
    return open_cuda_on_host(program, rank);
  };
  auto fit = measure_links(JoinedRanks::of(team), {.bytes = {4096}, .product = 16});
  EXPECT_EQ(fit.status().message(), "no memory");
}

TEST(CalibrateGpu_Base, IsFoundByTheGpusName) {
  const std::vector<std::string> profiles = ProfileLibrary::load()->device_names();
  EXPECT_EQ(profile_for("cuda:0 (NVIDIA H100 80GB HBM3)", profiles), "H100-80GB");
  EXPECT_EQ(profile_for("cuda:0 (NVIDIA A100-SXM4-40GB)", profiles), "A100-40GB");
  EXPECT_EQ(profile_for("cuda:0 (Tesla V100-SXM2-32GB)", profiles), "V100-32GB");
  EXPECT_EQ(profile_for("cuda:0 (NVIDIA GeForce RTX 4090)", profiles), "RTX-4090");
  EXPECT_EQ(profile_for("cuda:0 (NVIDIA H200)", profiles), "H200");
  EXPECT_EQ(profile_for("cuda:0 (NVIDIA L40S)", profiles), "");
}

}  // namespace
}  // namespace partita
#endif
