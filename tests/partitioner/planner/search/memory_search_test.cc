// What devices hold, and what the search makes of it.
#include <gtest/gtest.h>

#include <random>

#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

Cluster with_memory(Cluster c, double bytes) {
  for (DeviceGroup& g : c.groups) g.device.memory_bytes = bytes;
  return c;
}

// What fits a device fits a larger one.
TEST(MemorySearch, MoreIsNeverSlower) {
  std::mt19937 rng(5);
  auto pick = [&](std::initializer_list<int> of) { return *(of.begin() + static_cast<int64_t>(rng() % of.size())); };
  int64_t fits = 0;
  for (int round = 0; round < 10; ++round) {
    const Workload w = transformer(pick({8, 16, 24}), 1024 * pick({2, 4}), 1024 * pick({2, 4}), 32000);
    const Cluster c = cluster(pick({1, 2, 4}), pick({2, 4}), "A100-40GB");
    const int64_t batch = c.devices() * pick({4, 16});
    SearchOptions o;
    if (pick({0, 1}) == 1) o.pin.axes = {{"pipeline", 2}};
    if (pick({0, 1}) == 1) o.pin.offload = OffloadMode::kNone;
    double before = 1e300;
    for (const double gigabytes : {6, 7, 8, 9, 10, 12, 14, 17, 20, 24}) {
      OfOwnPrograms own(w, with_memory(c, gigabytes * 1e9), batch);
      const double now = seconds_found(own.model, o);
      EXPECT_LE(now, 1.005 * before) << round << ", " << gigabytes << " GB";
      fits += now < 1e300, before = std::min(before, now);
    }
  }
  EXPECT_GT(fits, 30);
}

// Stages gather and scatter in every micro-batch where nothing else fits.
TEST(MemorySearch, StagesDivideAllTheirStates) {
  const Workload w = transformer(16, 4096, 4096, 32000);
  OfOwnPrograms own(w, with_memory(cluster(8, 4, "A100-40GB"), 10e9), 1024);
  SearchOptions o;
  o.pin.axes = {{"pipeline", 2}, {"tensor", 1}, {"context", 1}};
  o.pin.offload = OffloadMode::kNone;
  const auto found = search(own.model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_GE(found->best->layout.zero, 2) << describe(found->best->layout);
}

}  // namespace
}  // namespace partita
