#include "partitioner/planner/search/fixes.h"

#include <gtest/gtest.h>

#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

TEST(Fixes, Fit) {
  Workload w = transformer(80, 8192, 4096, 128000);
  Cluster c = cluster(1, 1, "A100-80GB");
  Problem p = problem(w, c, 16);
  CostModel model(p);
  auto found = search(model, {});
  ASSERT_TRUE(found.ok());
  ASSERT_FALSE(found->best);
  ASSERT_TRUE(found->nearest);
  EXPECT_GT(found->nearest->prediction.missing_bytes, 0);
  std::vector<Fix> fixes = find_fixes(p, {}, library());
  ASSERT_FALSE(fixes.empty());
  for (const Fix& f : fixes) {
    EXPECT_TRUE(f.candidate.prediction.fits) << f.change;
    EXPECT_EQ(f.change.find("cpu"), std::string::npos) << f.change;
  }
}

// Pinned to what does not fit: changes of the layout come before other hardware.
TEST(Fixes, ThoseOfTheLayoutComeFirst) {
  Workload w = transformer(24, 2048, 1024, 32000);
  Cluster c = cluster(1, 8, "RTX-4090");
  Problem p = problem(w, c, 512);
  SearchOptions options;
  options.pin.zero = 0, options.pin.micro_batch = 64, options.pin.recompute = RecomputeMode::kNone;
  CostModel model(p);
  auto found = search(model, options);
  ASSERT_TRUE(found.ok() && !found->best) << found.status();
  std::vector<Fix> fixes = find_fixes(p, options, library());
  ASSERT_GT(fixes.size(), 1u);
  EXPECT_TRUE(fixes[0].same_hardware) << fixes[0].change;
  EXPECT_TRUE(std::is_partitioned(fixes.begin(), fixes.end(), [](const Fix& f) { return f.same_hardware; }));
}

// Blocks whose inputs are most of what is left: they may wait on the host, which is offered where `full` is not enough.
TEST(Fixes, NameTheHostWhereItHelps) {
  Workload w = transformer(96, 1024, 65536, 1000);
  Cluster c = cluster(1, 1, "H100-80GB");
  DeviceProfile& device = c.groups[0].device;
  Problem p = problem(w, c, 4);
  SearchOptions options;
  options.pin.micro_batch = 1, options.pin.recompute = RecomputeMode::kNone, options.pin.offload = OffloadMode::kNone;
  auto offered = [&](const std::string& change) {
    const std::vector<Fix> fixes = find_fixes(p, options, library());
    return std::any_of(fixes.begin(), fixes.end(), [&](const Fix& f) { return f.change == change; });
  };
  Layout l;
  auto bytes = [&](RecomputeMode mode) {
    l.recompute = mode;
    return CostModel(p).predict(l, false).memory[0].total();
  };
  device.memory_bytes = (bytes(RecomputeMode::kFull) + bytes(RecomputeMode::kFullOffload)) / 2;
  EXPECT_FALSE(offered("--pin recompute=full"));
  EXPECT_TRUE(offered("--pin recompute=full_offload"));
  device.host_update_rate = 0;
  EXPECT_FALSE(offered("--pin recompute=full_offload"));
}

}  // namespace
}  // namespace partita
