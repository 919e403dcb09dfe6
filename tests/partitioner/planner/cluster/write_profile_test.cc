#include "partitioner/planner/cluster/write_profile.h"

#include <gtest/gtest.h>

#include "ir/graph/builder.h"
#include "partitioner/planner/cluster/cluster.h"
#include "partitioner/planner/rates/kernel_time.h"
#include "partitioner/planner/workload/workload.h"

namespace partita {
namespace {

ProfileSet measured() {
  ProfileSet set;
  DeviceProfile d = *ProfileLibrary::load()->device("cpu");
  d.source = "measured: 2 threads";
  d.flops = {123456789012, 2e11, 0, 3e10};
  d.matrix.points = {{16, 0.25}, {1024, 1}};
  d.matrix_rows.points = {{8, 0.125}, {512, 1}};
  d.matrix_columns.points = {{8, 0.5}};
  d.convolution.points = {{64, 0.75}};
  d.convolution_plane.points = {{4, 0.25}, {64, 1}};
  d.convolution_strided = 0.625;
  d.tiles = {{1, 1, 1}};
  d.clock = 1.5e9, d.cache = 3e7;
  d.lanes = {128, 64, 32, 63, 16, 62, 31, 30};
  d.software.memory_traffic = 1.7, d.software.step_seconds = 2e-5;
  d.name = "bench-1";
  set.devices.push_back(d);
  LinkProfile link;
  link.kind = "bench-link", link.source = "measured", link.bandwidth = 3.5e9, link.latency = 7e-6,
  link.half_bytes = 900, link.wait_seconds = 3e-4;
  set.links.push_back(link);
  set.presets.push_back({"bench", "bench-1", "this machine", 2, "bench-link", "ethernet", 0, 0});
  return set;
}

TEST(ProfileText, WhatIsReadBackPredictsTheSame) {
  ProfileSet set = measured();
  ProfileLibrary library = *ProfileLibrary::load();
  absl::Status read = library.overlay(profile_text(set), "measured.yaml");
  ASSERT_TRUE(read.ok()) << read;
  const DeviceProfile *wrote = &set.devices[0], *found = library.device("bench-1");
  ASSERT_NE(found, nullptr);
  for (double size : {4.0, 100.0, 3000.0}) {
    EXPECT_NEAR(matrix_time(*found, Precision::kFp32, 1, size, size, size, 4) /
                    matrix_time(*wrote, Precision::kFp32, 1, size, size, size, 4),
                1, 1e-5)
        << size;
  }
  EXPECT_EQ(found->convolution.points, wrote->convolution.points);
  EXPECT_EQ(found->convolution_plane.points, wrote->convolution_plane.points);
  EXPECT_DOUBLE_EQ(found->convolution_strided, 0.625);
  EXPECT_DOUBLE_EQ(found->clock, 1.5e9);
  EXPECT_DOUBLE_EQ(found->cache, 3e7);
  EXPECT_DOUBLE_EQ(found->lanes.issue, 128);
  EXPECT_DOUBLE_EQ(found->lanes.integer, 63);
  EXPECT_DOUBLE_EQ(found->lanes.convert, 62);
  EXPECT_DOUBLE_EQ(found->lanes.exchange, 31);
  EXPECT_DOUBLE_EQ(found->lanes.memory, 30);
  EXPECT_DOUBLE_EQ(found->software.memory_traffic, 1.7);
  EXPECT_DOUBLE_EQ(found->software.step_seconds, 2e-5);
  auto cluster = parse_cluster("preset: bench\n", "cluster.yaml", library);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->devices(), 2);
  EXPECT_DOUBLE_EQ(cluster->groups[0].links[0].link.bandwidth, 3.5e9);
  EXPECT_DOUBLE_EQ(cluster->groups[0].links[0].link.half_bytes, 900);
  EXPECT_DOUBLE_EQ(cluster->groups[0].links[0].link.wait_seconds, 3e-4);
}

TEST(MatrixTime, SmallRowsAndColumnsAreSlower) {
  DeviceProfile d = measured().devices[0];
  d.launch_seconds = 0, d.bandwidth = 1e15;
  auto rate = [&](double m, double n) { return m * n / matrix_time(d, Precision::kFp32, 1, m, n, 1024, 4); };
  EXPECT_NEAR(rate(8, 512) / rate(512, 512), 0.125, 1e-9);
  d.matrix_rows.points.clear();
  EXPECT_NEAR(rate(8, 512) / rate(512, 512), 1, 1e-9);
}

// Convolutions with two features of an image: one that keeps the plane, one that halves its edges. The counts are those
// of the plain formula, the seconds what a profile says of small planes and strides.
TEST(ConvolutionTime, SmallPlanesAndStridesAreSlower) {
  Builder g;
  ValueId x = g.input("x", {DType::kF32, {8, 2, 8, 8}});
  auto convolve = [&](ValueId in, const std::string& name, std::vector<int64_t> strides) {
    ValueId w = g.state({.name = name, .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                        {DType::kF32, {16, g.shape(in)[1], 3, 3}});
    return g.emit("conv", {in, w},
                  {{"strides", std::move(strides)},
                   {"pads_low", std::vector<int64_t>{1, 1}},
                   {"pads_high", std::vector<int64_t>{1, 1}}});
  };
  g.output("y", g.mean(convolve(convolve(x, "a", {1, 1}), "b", {2, 2}), {0, 1, 2, 3}, false));
  auto found = analyse(std::move(g).finish());
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<MatrixWork> convolutions;
  for (const UnitWork& u : found->kinds) convolutions.insert(convolutions.end(), u.matrices.begin(), u.matrices.end());
  ASSERT_EQ(convolutions.size(), 2);
  EXPECT_EQ(convolutions[0].plane, 64);
  EXPECT_FALSE(convolutions[0].strided);
  EXPECT_EQ(convolutions[1].plane, 16);
  EXPECT_TRUE(convolutions[1].strided);

  DeviceProfile d = measured().devices[0];
  d.launch_seconds = 0, d.convolution.points = {{16, 0.5}}, d.convolution_plane.points = {{16, 0.25}, {64, 1}};
  auto seconds = [&](const MatrixWork& x) {
    UnitWork alone;
    alone.matrices = {x};
    return unit_time(alone, *found, d, {}, {}).forward;
  };
  for (const MatrixWork& x : convolutions) {
    double share = x.strided ? 0.5 * 0.25 * d.convolution_strided : 0.5;
    EXPECT_NEAR(seconds(x), x.flops() / (d.flops[0] * share), 1e-6 * seconds(x));
  }
}

}  // namespace
}  // namespace partita
