#include "partitioner/planner/rates/collective_time.h"

#include <gtest/gtest.h>

#include <cmath>

namespace partita {
namespace {

// Two nodes of four devices; round numbers, so that times can be worked out by hand.
DeviceGroup two_nodes() {
  DeviceGroup g;
  g.nodes = 2, g.devices_per_node = 4;
  g.device.host_update_rate = 1e9;  // no hosts
  LinkLevel inner, outer;
  inner.link.bandwidth = 100e9, inner.group = 4;
  outer.link.bandwidth = 10e9, outer.group = 8;
  g.links = {inner, outer};
  return g;
}

TEST(CollectiveCost, RingInsideANode) {
  DeviceGroup g = two_nodes();
  // 3/4 of 1 GB at 100 GB/s; twice that for all-reduce.
  EXPECT_DOUBLE_EQ(collective_time(g, CollectiveKind::kAllGather, {4, 1}, 1e9).seconds, 0.0075);
  EXPECT_DOUBLE_EQ(collective_time(g, CollectiveKind::kReduceScatter, {4, 1}, 1e9).seconds, 0.0075);
  EXPECT_DOUBLE_EQ(collective_time(g, CollectiveKind::kAllReduce, {4, 1}, 1e9).seconds, 0.015);
}

TEST(CollectiveCost, AcrossNodes) {
  DeviceGroup g = two_nodes();
  // One rank a node (stride 4): half of 1 GB at 10 GB/s.
  EXPECT_DOUBLE_EQ(collective_time(g, CollectiveKind::kAllGather, {2, 4}, 1e9).seconds, 0.05);
  // All eight: one ring has the four cards of each node, 7/8 GB at 40 GB/s.
  CollectiveTime t = collective_time(g, CollectiveKind::kAllGather, {8, 1}, 1e9);
  EXPECT_DOUBLE_EQ(t.seconds, 0.021875);
  EXPECT_EQ(t.algorithm, "ring");
}

// Each rank sends a part to each other: of a node's 4 x 1/8 GB for the other one, 10 GB/s a rank.
TEST(CollectiveCost, HostsSendToEachOtherDirectly) {
  DeviceGroup g = two_nodes();
  g.device.host_update_rate = 0;
  const CollectiveTime t = collective_time(g, CollectiveKind::kAllReduce, {8, 1}, 1e9);
  EXPECT_EQ(t.algorithm, "direct");
  EXPECT_DOUBLE_EQ(t.seconds, 2 * 4 * 0.125 / 10);
  EXPECT_DOUBLE_EQ(collective_time(g, CollectiveKind::kReduceScatter, {2, 4}, 1e9).seconds, 0.05);
  // In levels: 3/4 of it within each node, then a quarter between ranks of the same place.
  const double levels = 2 * (0.75 / 100 + 0.5 * 0.25 / 10);
  EXPECT_LT(levels, t.seconds / 2);
  // Few bytes are sent to all, who add them up themselves.
  for (LinkLevel& l : g.links) l.link.latency = 1e-5;
  EXPECT_NEAR(collective_time(g, CollectiveKind::kAllReduce, {8, 1}, 4).seconds, 7e-5, 1e-8);
  EXPECT_NEAR(collective_time(g, CollectiveKind::kAllReduce, {8, 1}, 8192).seconds, 2 * 7e-5, 1e-5);
}

// NCCL's parallel aggregated trees: log2(n) hops, with one rank in a node.
TEST(CollectiveCost, ScattersAmongManyNodes) {
  DeviceGroup g = two_nodes();
  g.nodes = 128, g.links[1].group = 512, g.links[1].link.latency = 1.4e-5;
  const CollectiveTime t = collective_time(g, CollectiveKind::kReduceScatter, {128, 4}, 1);
  EXPECT_EQ(t.algorithm, "pat");
  EXPECT_NEAR(t.seconds, 7 * 4e-6 + 128 * 2.8e-6, 1e-9);
  // Of many bytes a ring has the whole bandwidth.
  EXPECT_EQ(collective_time(g, CollectiveKind::kReduceScatter, {128, 4}, 1e9).algorithm, "ring");
  EXPECT_EQ(collective_time(g, CollectiveKind::kReduceScatter, {512, 1}, 1).algorithm, "ring");
  EXPECT_NE(collective_time(g, CollectiveKind::kAllReduce, {128, 4}, 1).algorithm, "pat");
}

TEST(CollectiveCost, MessagesGrowWithTheRing) {
  DeviceGroup g = two_nodes();
  g.nodes = 128, g.links[1].group = 512;
  for (LinkLevel& l : g.links) l.link.latency = 1e-5;
  auto message = [&](int64_t ranks, double bytes) {
    return best_message(g, CollectiveKind::kAllGather, {ranks, 1}, bytes, 1 << 20);
  };
  EXPECT_EQ(message(512, 1e5), 1 << 20);
  EXPECT_LT(message(4, 1e10), message(64, 1e10));
  EXPECT_LT(message(64, 1e10), message(512, 1e10));
  // sqrt(bytes x latency x bandwidth), to a factor of 2 of doublings: 511 hops at 40 GB/s.
  const double best = std::sqrt(1e10 * 511e-5 * 4e10);
  EXPECT_GT(message(512, 1e10), best / 2);
  EXPECT_LT(message(512, 1e10), best * 2);
}

TEST(CollectiveCost, LatencyOfSmallMessages) {
  DeviceGroup g = two_nodes();
  for (LinkLevel& l : g.links) l.link.latency = 1e-5;
  // Ring: 2 x 3 hops; tree: a chain inside one level is log2(4) hops up and down.
  CollectiveTime t = collective_time(g, CollectiveKind::kAllReduce, {4, 1}, 1);
  EXPECT_EQ(t.algorithm, "tree");
  EXPECT_NEAR(t.seconds, 4e-5, 1e-9);
}

TEST(CollectiveCost, ARingLeavesEachNodeOnce) {
  DeviceGroup g = two_nodes();
  g.links[0].link.latency = 1e-6, g.links[1].link.latency = 1e-5;
  auto latency = [&](int64_t ranks) {
    return collective_time(g, CollectiveKind::kAllGather, {ranks, 1}, 1e-6).seconds;
  };
  EXPECT_NEAR(latency(4), 3e-6, 1e-12);
  EXPECT_NEAR(latency(8), 6e-6 + 1e-5, 1e-12);
  EXPECT_EQ(latency(1), 0);
}

TEST(CollectiveCost, AllToAllIsBoundByTheNetwork) {
  // Each rank sends 4/8 of 1 GB out of its node at 10 GB/s.
  EXPECT_DOUBLE_EQ(collective_time(two_nodes(), CollectiveKind::kAllToAll, {8, 1}, 1e9).seconds, 0.05);
}

TEST(CollectiveCost, SwitchThatReduces) {
  DeviceGroup g = two_nodes();
  double ring = collective_time(g, CollectiveKind::kAllReduce, {4, 1}, 1e9).seconds;
  g.links[0].link.multicast = true, g.links[0].link.multicast_gain = 2;
  CollectiveTime t = collective_time(g, CollectiveKind::kAllReduce, {4, 1}, 1e9);
  EXPECT_EQ(t.algorithm, "multicast");
  EXPECT_LT(t.seconds, ring);
}

TEST(CollectiveCost, GroupsWaitForTheirLastRank) {
  DeviceGroup g = two_nodes(), jitters = g;
  jitters.links.back().link.wait_seconds = 0.25;
  auto more = [&](CollectiveKind kind) {
    return collective_time(jitters, kind, {8, 1}, 1e9).seconds - collective_time(g, kind, {8, 1}, 1e9).seconds;
  };
  for (auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                    CollectiveKind::kAllToAll}) {
    EXPECT_DOUBLE_EQ(more(kind), 0.25);
  }
  EXPECT_EQ(more(CollectiveKind::kSend), 0);
}

TEST(CollectiveCost, NothingToDo) {
  EXPECT_EQ(collective_time(two_nodes(), CollectiveKind::kAllReduce, {1, 1}, 1e9).seconds, 0);
  EXPECT_EQ(collective_time(two_nodes(), CollectiveKind::kAllReduce, {8, 1}, 0).seconds, 0);
}

TEST(CollectiveCost, MoreBytesNeverTakeLess) {
  DeviceGroup g = two_nodes();
  for (LinkLevel& l : g.links) l.link.latency = 5e-6, l.link.half_bytes = 1e6;
  for (auto kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kAllToAll, CollectiveKind::kSend}) {
    double before = 0;
    for (double bytes = 1; bytes < 1e10; bytes *= 3) {
      double now = collective_time(g, kind, {8, 1}, bytes).seconds;
      EXPECT_GE(now, before);
      before = now;
    }
  }
}

}  // namespace
}  // namespace partita
