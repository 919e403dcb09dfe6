// Gathers of stored parameters go in buckets and start early, within a bound. That results stay the same is part of the
// property test.
#include "partitioner/communicate/state_gathers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/graph/builder.h"
#include "ir/graph/verify.h"
#include "partitioner/communicate/bucket_gathers.h"
#include "partitioner/communicate/keep_gathered.h"
#include "partitioner/communicate/prefetch_gathers.h"
#include "partitioner/communicate/regather_in_backward.h"
#include "partitioner/localize/localize.h"
#include "tests/partitioner/support/random_model.h"

namespace partita {
namespace {

// A model over two ranks that store half of each parameter.
LocalProgram stored_in_parts(GatherTime gather = GatherTime::kPass) {
  RandomModel model{.layers = {2, 3, 2, 3}, .accumulate = true};
  Graph graph = training_graph(model);
  ShardingPlan plan;
  plan.mesh.axes = {{"data", 2}};
  for (const GraphInput& in : graph.inputs) {
    Sharding s = Sharding::replicated(graph.type(in.value).shape);
    s.dims[0][0].axes = {0};
    plan.inputs.push_back(std::move(s));
  }
  for (const State& s : graph.states) {
    Sharding whole = Sharding::replicated(graph.type(s.value).shape), half = whole;
    if (s.kind == StateKind::kParameter) half.dims[0][0].axes = {0};
    plan.states.push_back(StateLayout{half, whole, gather});
    if (s.kind == StateKind::kAccumulator) plan.states.back().reset();
  }
  auto local = localize(graph, plan);
  EXPECT_TRUE(local.ok()) << local.status();
  return *std::move(local);
}

// Per node that gathers a matrix, how many nodes that compute with matrices stand between it and its first reader.
std::vector<int> products_meanwhile(const Graph& graph) {
  auto readers = uses(graph);
  std::vector<int> out;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op->name != "all_gather") continue;
    ValueId v = node.outputs[0];
    while (readers[v].size() == 1 && graph.nodes[readers[v][0]].op->view) v = graph.nodes[readers[v][0]].outputs[0];
    int products = 0;
    for (NodeId k = static_cast<NodeId>(n); !readers[v].empty() && k < readers[v][0]; ++k)
      products += graph.nodes[k].op->name == "matmul";
    out.push_back(products);
  }
  return out;
}

std::vector<Node*> gathers_of(Graph& graph, Segment segment) {
  std::vector<Node*> out;
  for (Node& node : graph.nodes) {
    if (node.op->name == "all_gather" && node.segment == segment) out.push_back(&node);
  }
  return out;
}

size_t gathers_before_products(const Graph& graph) {
  size_t gathers = 0;
  for (const Node& node : graph.nodes) {
    if (node.op->name == "matmul") break;
    gathers += node.op->name == "all_gather";
  }
  return gathers;
}

int most(const std::vector<int>& x) { return *std::max_element(x.begin(), x.end()); }

// Sums the first product in the forward part over the ranks.
void crowd(LocalProgram& program) {
  const Graph& g = program.graph;
  Rewriter r(g);
  bool summed = false;
  for (const Node& node : g.nodes) {
    r.copy(node);
    if (summed || node.op->name != "matmul") continue;
    summed = true;
    r.replace(node.outputs[0], r.builder().emit("all_reduce", {r(node.outputs[0])},
                                                {{"axes", std::vector<int64_t>{0}}, {"parts", 2}, {"reduce", "sum"}}));
  }
  program.graph = std::move(r).finish();
}

TEST(PrefetchGathers, StartWhileEarlierOnesAreComputedWith) {
  LocalProgram program = stored_in_parts();
  crowd(program);
  ASSERT_EQ(most(products_meanwhile(program.graph)), 0);
  const int64_t before = gathered_bytes(program.graph);
  constexpr int64_t kMatrix = 8 * 16 * 8;  // the largest
  prefetch_gathers(program, 1);
  ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
  EXPECT_GE(most(products_meanwhile(program.graph)), 1);
  EXPECT_GT(gathered_bytes(program.graph), before);
  EXPECT_LE(gathered_bytes(program.graph), before + kMatrix);
}

// Each block more that gathers run ahead is one more in memory at most.
TEST(PrefetchGathers, RunAsFarAheadAsTheyAreTold) {
  LocalProgram crowded = stored_in_parts();
  crowd(crowded);
  const int64_t alone = gathered_bytes(crowded.graph);
  constexpr int64_t kMatrix = 8 * 16 * 8;
  int64_t before = 0;
  for (int64_t blocks : {0, 1, 2, 100}) {
    LocalProgram program = crowded;
    prefetch_gathers(program, blocks);
    ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
    const int64_t bytes = gathered_bytes(program.graph);
    EXPECT_GE(bytes, alone) << blocks;
    EXPECT_LE(bytes, alone + blocks * kMatrix + (blocks > 0 ? kMatrix / 16 : 0)) << blocks;
    EXPECT_GT(bytes, before) << blocks;
    before = bytes;
    const size_t all = gathers_of(program.graph, Segment::kForward).size();
    EXPECT_EQ(gathers_before_products(program.graph) == all, blocks == 100) << blocks;
  }
}

TEST(PrefetchGathers, OfWhatIsWhole_ChangeNothing) {
  Graph graph = training_graph({.layers = {2}});
  LocalProgram program{.graph = graph};
  prefetch_gathers(program, 1);
  EXPECT_EQ(gathered_bytes(program.graph), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) EXPECT_EQ(program.graph.nodes[n].op, graph.nodes[n].op);
}

// As much as backward would have at hand at once.
TEST(KeepGathered, BackwardReadsWhatTheEndOfForwardGathered) {
  LocalProgram made = stored_in_parts();
  regather_in_backward(made, {0});
  const size_t forward = gathers_of(made.graph, Segment::kForward).size();
  const int64_t largest = largest_gathered(made.graph);
  size_t before = 0, most = 0;
  for (int64_t blocks : {-1, 0, 1, 100}) {  // -1: as it is made
    LocalProgram program = made;
    if (blocks >= 0) keep_gathered(program, blocks);
    ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
    const size_t again = gathers_of(program.graph, Segment::kBackward).size();
    EXPECT_EQ(gathers_of(program.graph, Segment::kForward).size(), forward);
    if (blocks < 0) {
      most = again;
    } else {
      EXPECT_LT(again, before) << blocks;
      EXPECT_LE(gathered_bytes(program.graph), std::max(gathered_bytes(made.graph), (1 + blocks) * largest)) << blocks;
    }
    before = again;
  }
  EXPECT_GT(most, 3u);
  EXPECT_EQ(before, 0u);
}

TEST(BucketGathers, OneForEachBlockAndPass) {
  LocalProgram program = stored_in_parts();
  std::vector<Node*> forward = gathers_of(program.graph, Segment::kForward);
  ASSERT_GE(forward.size(), 4u);
  for (size_t k = 0; k < forward.size(); ++k) forward[k]->block = static_cast<int32_t>(k / 2);
  const size_t blocks = (forward.size() + 1) / 2;
  bucket_gathers(program, BucketSizes::all(1));
  ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
  forward = gathers_of(program.graph, Segment::kForward);
  EXPECT_EQ(forward.size(), blocks);
  EXPECT_EQ(forward[0]->inputs.size(), 2u);
  const int64_t before = gathered_bytes(program.graph);
  int64_t largest = 0;
  for (const Node* gather : forward) {
    int64_t bytes = 0;
    for (ValueId v : gather->outputs) bytes += byte_size(program.graph.type(v));
    largest = std::max(largest, bytes);
  }
  prefetch_gathers(program, 1);
  ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
  EXPECT_GE(most(products_meanwhile(program.graph)), 1);
  EXPECT_LE(gathered_bytes(program.graph), before + largest);
}

TEST(GatheredOnceAStep, IsInThePrologueAndCountsAllAtOnce) {
  LocalProgram program = stored_in_parts(GatherTime::kStep);
  EXPECT_EQ(gathers_of(program.graph, Segment::kForward).size(), 0u);
  EXPECT_EQ(gathers_of(program.graph, Segment::kBackward).size(), 0u);
  int64_t all = 0;
  for (const Node* gather : gathers_of(program.graph, Segment::kPrologue))
    all += byte_size(program.graph.type(gather->outputs[0]));
  EXPECT_GT(all, 0);
  EXPECT_EQ(gathered_bytes(program.graph), all);
  bucket_gathers(program, BucketSizes::all(1 << 20));
  prefetch_gathers(program, 1);
  ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
  EXPECT_EQ(gathered_bytes(program.graph), all);
  EXPECT_EQ(gathers_of(program.graph, Segment::kPrologue).size(), 1u);  // in buckets too
}

// What is kept for backward starts with the phase, but where another collective's result is used before.
TEST(PrefetchGathers, WhatIsKeptStartsWithItsPhase) {
  const auto before_products = [](bool crowded) {
    LocalProgram program = stored_in_parts(GatherTime::kMicroBatch);
    if (crowded) crowd(program);
    prefetch_gathers(program, 1);
    EXPECT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
    return std::pair(gathers_before_products(program.graph), gathers_of(program.graph, Segment::kForward).size());
  };
  const auto [ahead, all] = before_products(false);
  EXPECT_EQ(ahead, all);
  EXPECT_LT(before_products(true).first, all);
}

TEST(BucketGathers, OutsideOfBlocksUpToTheLimit) {
  constexpr int64_t kLimit = 8 * 16 * 20;
  LocalProgram program = stored_in_parts();
  const size_t apart = gathers_of(program.graph, Segment::kForward).size();
  bucket_gathers(program, BucketSizes::all(kLimit));
  ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
  std::vector<Node*> some = gathers_of(program.graph, Segment::kForward);
  EXPECT_LT(some.size(), apart);
  for (const Node* gather : some) {
    int64_t bytes = 0;
    for (ValueId v : gather->outputs) bytes += byte_size(program.graph.type(v));
    EXPECT_TRUE(bytes <= kLimit || gather->inputs.size() == 1) << bytes;
  }
  bucket_gathers(program, BucketSizes::all(1 << 20));
  EXPECT_EQ(gathers_of(program.graph, Segment::kForward).size(), 1u);
}

}  // namespace
}  // namespace partita
