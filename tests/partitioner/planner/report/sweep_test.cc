#include "partitioner/planner/report/sweep.h"

#include <gtest/gtest.h>

#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

Cluster read(const std::string& text) {
  auto c = parse_cluster(text, "cluster.yaml", library());
  EXPECT_TRUE(c.ok()) << c.status();
  return *std::move(c);
}

const std::string kTwoGroups = R"(groups:
  - {nodes: 1, devices_per_node: 8, device: H100-80GB, links: [{kind: nvlink4, group: 8}]}
  - {nodes: 1, devices_per_node: 8, device: A100-80GB, links: [{kind: nvlink3, group: 8}]}
)";

double what_if_seconds(const Cluster& c, const std::string& change) {
  const Workload w = transformer(8, 2048, 1024, 32000);
  const Problem p = problem(w, c, 64);
  for (const WhatIf& now : what_if(p, {})) {
    if (now.change == change && now.candidate) return now.candidate->prediction.step_seconds;
  }
  return 0;
}

// What joins the groups is network too: of single nodes it is all there is.
TEST(Sweep, TwiceTheNetworkIsThatBetweenGroupsToo) {
  const Cluster slow = read(kTwoGroups + "between: {kind: infiniband, bandwidth: 100MB/s}\n"),
                fast = read(kTwoGroups + "between: {kind: infiniband, bandwidth: 200MB/s}\n");
  const double twice = what_if_seconds(slow, "twice the network");
  EXPECT_DOUBLE_EQ(twice, what_if_seconds(fast, "as it is"));
  EXPECT_LT(twice, 0.9 * what_if_seconds(slow, "as it is"));
}

TEST(Sweep, TwiceTheNetworkOfGroupsThatSayNothingBetweenThem) {
  const Cluster c = read(kTwoGroups);
  EXPECT_LT(what_if_seconds(c, "twice the network"), what_if_seconds(c, "as it is"));
}

// Spare nodes are paid for where failures count, as `simulate --days` has them.
TEST(Sweep, SpareNodesAreInThePriceOfARunWithFailures) {
  const std::string nodes = "nodes: 2\ndevices_per_node: 8\ndevice: A100-80GB\nprice_per_hour: 3\n";
  const Cluster c = read(nodes + "spare_nodes: 1\n");
  const Workload w = transformer(8, 2048, 1024, 32000);
  const Problem p = problem(w, c, 64);
  for (const bool failures : {false, true}) {
    auto s = sweep(p, {}, {16}, 1e11, failures);
    ASSERT_TRUE(s.ok()) << s.status();
    EXPECT_NEAR(s->rows[0].dollars / s->rows[0].days, 24 * 3 * (failures ? 24 : 16), 1e-6);
  }
}

TEST(Sweep, ARunWithFailuresHasAnEnd) {
  const Cluster c = cluster(1, 8, "A100-80GB");
  const Workload w = transformer(8, 2048, 1024, 32000);
  const Problem p = problem(w, c, 64);
  EXPECT_TRUE(sweep(p, {}, {8}, 1e25, false).ok());
  EXPECT_FALSE(sweep(p, {}, {8}, 1e25, true).ok());
}

}  // namespace
}  // namespace partita
