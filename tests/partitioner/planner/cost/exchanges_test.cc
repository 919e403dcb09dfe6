// How gradients and parameters are exchanged: in how large buckets, and in levels.
#include <gtest/gtest.h>

#include "base/cat.h"
#include "partitioner/planner/cost/cost_model.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

constexpr double kSequence = 2048;

struct Planned {
  Layout layout;
  Prediction prediction;
};

// Nodes of eight, with 4 x 100 Gb/s each.
Cluster nodes_of_eight(int64_t nodes) {
  std::string text =
      cat("nodes: ", nodes, "\ndevices_per_node: 8\ndevice: A100-80GB\nlinks:\n- {kind: nvlink3, group: 8}\n");
  if (nodes > 1) text += "- {kind: infiniband, bandwidth: 6.25GB/s}\n";
  auto c = parse_cluster(text, "c", library());
  EXPECT_TRUE(c.ok()) << c.status();
  return *c;
}

// 8 samples a rank, of a model with 6.5 billion parameters, or of one with a hundred times less.
Planned planned(int64_t nodes, int zero, Layout layout = {}, bool small = false) {
  Workload w = small ? transformer(4, 1024, kSequence, 8192) : transformer(32, 4096, kSequence, 32000);
  Cluster c = nodes_of_eight(nodes);
  Problem p = problem(w, c, nodes * 8 * 8);
  p.own_programs = true;
  layout.data = nodes * 8, layout.micro_batch = 2, layout.zero = zero;
  CostModel model(p);
  layout = model.with_exchanges(layout);
  return {layout, model.predict(layout, false)};
}

TEST(Exchanges, BucketsGrowWithTheRing) {
  int64_t before = 0;
  for (int64_t nodes : {1, 16, 128}) {
    Layout flat;
    flat.hierarchical_group = nodes * 8;  // all at once
    const int64_t bytes = planned(nodes, 1, flat).layout.buckets.bytes(nodes * 8);
    EXPECT_GT(bytes, before) << nodes;
    before = bytes;
  }
  EXPECT_GE(before, int64_t{512} << 20);
  EXPECT_GE(planned(1, 1).layout.buckets.bytes(8), BucketSizes::kLeast);
}

// Few bytes among many ranks: the hops of a ring are what they cost.
TEST(Exchanges, GoInLevelsWhereHopsAreMost) {
  EXPECT_EQ(planned(1, 1, {}, true).layout.hierarchical_group, 0);
  for (int zero : {1, 2, 3}) {
    Layout flat;
    flat.hierarchical_group = 1024;  // all at once
    const Planned at_once = planned(128, zero, flat, true), levels = planned(128, zero, {}, true);
    EXPECT_EQ(levels.layout.hierarchical_group, 8) << zero;
    EXPECT_LT(levels.prediction.step_seconds, at_once.prediction.step_seconds) << zero;
  }
}

// Eight samples a rank take no more than a quarter longer on 4,096 ranks than on 8.
TEST(Exchanges, StayFlatUpToThousandsOfRanks) {
  const double one = planned(1, 1).prediction.step_seconds;
  for (int64_t nodes : {4, 32, 128, 512}) EXPECT_GE(one / planned(nodes, 1).prediction.step_seconds, 0.8) << nodes;
}

TEST(Exchanges, PinsAreTaken) {
  Layout pinned;
  pinned.buckets = BucketSizes::all(1 << 20), pinned.hierarchical_group = 4;
  const Planned p = planned(16, 1, pinned);
  EXPECT_EQ(p.layout.buckets, BucketSizes::all(1 << 20));
  EXPECT_EQ(p.layout.hierarchical_group, 4);
  pinned.buckets = BucketSizes::all(int64_t{256} << 20);
  EXPECT_LT(planned(16, 1, pinned).prediction.step_seconds, p.prediction.step_seconds);
}

// Gradients that ZeRO-2 scatters wait for their bucket.
TEST(Exchanges, BucketsAreInMemory) {
  auto transient = [](int zero, int64_t bytes) {
    Layout l;
    l.buckets = BucketSizes::all(bytes);
    return planned(1, zero, l).prediction.memory[0].transient;
  };
  EXPECT_NEAR(transient(2, int64_t{2} << 30) - transient(2, int64_t{1} << 30), int64_t{1} << 30, 1);
  EXPECT_EQ(transient(1, int64_t{2} << 30), transient(1, int64_t{1} << 30));
}

// Other software has messages of its own.
TEST(Exchanges, PublishedSoftwareIsLeftAlone) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = nodes_of_eight(16);
  Problem p = problem(w, c, 128);
  Layout l;
  l.data = 128, l.zero = 1;
  CostModel model(p);
  EXPECT_EQ(model.with_exchanges(l), l);
}

}  // namespace
}  // namespace partita
