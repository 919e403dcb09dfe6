// How gradients and parameters are exchanged: in how large buckets, and in levels.
#include <gtest/gtest.h>

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
Cluster nodes_of_eight(int64_t nodes) { return partita::nodes_of_eight(nodes, "bandwidth: 6.25GB/s"); }

// 8 samples a rank, two at a time, of a model with 6.5 billion parameters, or of one with a hundred times less.
// `hides`: whether collectives run beside compute; no: on hosts whose memory is slower than the wire.
Planned planned(int64_t nodes, int zero, Layout layout = {}, bool small = false, bool hides = true) {
  Workload w = small ? transformer(4, 1024, kSequence, 8192) : transformer(32, 4096, kSequence, 32000);
  Cluster c = nodes_of_eight(nodes);
  if (!hides) c.groups[0].device.host_update_rate = 0, c.groups[0].device.bandwidth = 1e9;
  Problem p = problem(w, c, nodes * 8 * 8);
  p.own_programs = true;
  layout.data = nodes * 8 / layout.tensor, layout.zero = zero;
  if (layout.micro_batch == 1) layout.micro_batch = 2;
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

// Of their speed on 8 ranks, eight samples a rank keep on 4,096 nearly all where the backward part of the last of four
// micro-batches hides most of the gradients' sums, or one micro-batch's all of them.
TEST(Exchanges, StayFlatUpToThousandsOfRanks) {
  for (auto [micro_batch, least] : {std::pair{2, 0.8}, {8, 0.92}}) {
    Layout l;
    l.micro_batch = micro_batch;
    const double one = planned(1, 1, l).prediction.step_seconds;
    for (int64_t nodes : {4, 32, 128, 512})
      EXPECT_GE(one / planned(nodes, 1, l).prediction.step_seconds, least)
          << nodes << ", " << micro_batch << " at once";
  }
}

// Of gathers of updated parameters only what the first micro-batch's forward part does not hide is waited for. Sums
// over a tensor axis would be waited for behind all of them.
TEST(Exchanges, GathersHideUnderTheFirstForwardPart) {
  auto gathers = [](int zero, bool hides, int64_t tensor, int64_t micro_batch) {
    Layout l;
    l.tensor = tensor, l.micro_batch = micro_batch;
    return planned(16, zero, l, false, hides).prediction.breakdown.gathers;
  };
  for (int zero : {1, 2}) EXPECT_LT(gathers(zero, true, 1, 2), 0.3 * gathers(zero, false, 1, 2)) << zero;
  EXPECT_LT(gathers(1, true, 1, 8), 0.1 * gathers(1, false, 1, 8));
  EXPECT_GT(gathers(1, true, 2, 2), 0.99 * gathers(1, false, 2, 2));  // hosts' are no rings
  // With one micro-batch they stand among the sums, a unit ahead.
  EXPECT_LT(gathers(1, true, 2, 16), 0.5 * gathers(1, false, 2, 16));
}

// What moves bytes on a host takes the cores that compute as far as the wire is fast.
TEST(Exchanges, HostsHideWhatTravelsOverASlowWire) {
  Workload w = transformer(4, 1024, kSequence, 8192);
  auto gradients = [&](double wire, bool host) {
    Cluster c = nodes_of_eight(1);
    DeviceGroup& g = c.groups[0];
    g.links.back().link.bandwidth = wire;
    if (host) g.device.host_update_rate = 0;
    Problem p = problem(w, c, 64);
    p.own_programs = true;
    Layout l;
    l.data = 8, l.micro_batch = 8, l.buckets = BucketSizes::all(1 << 20);
    CostModel model(p);
    return model.predict(l, false).breakdown.gradients;
  };
  const double memory = nodes_of_eight(1).groups[0].device.bandwidth;
  EXPECT_LT(gradients(memory / 50, true), 1.5 * gradients(memory / 50, false));
  EXPECT_GT(gradients(memory / 5, true), 3 * gradients(memory / 5, false));
}

// Gradients' sums run beside the backward pass that completes them: of several micro-batches the last one's.
TEST(Exchanges, SumsHideUnderTheLastBackwardPart) {
  auto gradients = [](int64_t micro_batch, bool hides) {
    Layout l;
    l.micro_batch = micro_batch;
    return planned(16, 1, l, false, hides).prediction.breakdown.gradients;
  };
  EXPECT_LT(gradients(8, true), 0.5 * gradients(8, false));
  EXPECT_GT(gradients(8, true), 0);  // the last bucket
  EXPECT_LT(gradients(2, true), 0.9 * gradients(2, false));
  EXPECT_GE(gradients(1, true), gradients(2, true));
  EXPECT_GE(gradients(2, true), gradients(8, true));
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
