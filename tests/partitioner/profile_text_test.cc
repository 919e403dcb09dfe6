#include "partitioner/profile_text.h"

#include <gtest/gtest.h>

#include "partitioner/cluster.h"
#include "partitioner/compute_cost.h"

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
  d.tiles = {{1, 1, 1}};
  d.software.memory_traffic = 1.7, d.software.step_seconds = 2e-5;
  d.name = "bench-1";
  set.devices.push_back(d);
  LinkProfile link;
  link.kind = "bench-link", link.source = "measured", link.bandwidth = 3.5e9, link.latency = 7e-6,
  link.half_bytes = 900;
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
  EXPECT_DOUBLE_EQ(found->software.memory_traffic, 1.7);
  EXPECT_DOUBLE_EQ(found->software.step_seconds, 2e-5);
  auto cluster = parse_cluster("preset: bench\n", "cluster.yaml", library);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->devices(), 2);
  EXPECT_DOUBLE_EQ(cluster->groups[0].links[0].link.bandwidth, 3.5e9);
  EXPECT_DOUBLE_EQ(cluster->groups[0].links[0].link.half_bytes, 900);
}

TEST(MatrixTime, SmallRowsAndColumnsAreSlower) {
  DeviceProfile d = measured().devices[0];
  d.launch_seconds = 0, d.bandwidth = 1e15;
  auto rate = [&](double m, double n) { return m * n / matrix_time(d, Precision::kFp32, 1, m, n, 1024, 4); };
  EXPECT_NEAR(rate(8, 512) / rate(512, 512), 0.125, 1e-9);
  d.matrix_rows.points.clear();
  EXPECT_NEAR(rate(8, 512) / rate(512, 512), 1, 1e-9);
}

}  // namespace
}  // namespace partita
