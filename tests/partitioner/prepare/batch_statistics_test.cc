// Statistics over a batch that ranks share: of the whole batch, summed over the ranks; or of each replica's samples.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "partitioner/communicate/bucket.h"
#include "partitioner/prepare/group_statistics.h"
#include "partitioner/shard/plan_shardings.h"
#include "passes/forward/attach_loss.h"
#include "passes/rewrite/clean_up.h"
#include "passes/training/build_backward.h"
#include "passes/training/build_optimizer.h"
#include "passes/training/update_statistics.h"
#include "tests/partitioner/support/spmd.h"

namespace partita {
namespace {

constexpr DType kF = DType::kF64;
constexpr double kMomentum = 0.9;
constexpr int64_t kSamples = 8;

// Two convolutions, each with a batch norm whose running statistics follow, and a classifier of 3 classes.
Graph conv_net(int64_t samples) {
  Builder g;
  auto state = [&](const std::string& name, StateKind kind, Shape shape) {
    return g.state({.name = name, .kind = kind, .parameter = {}, .initial = {}}, {kF, std::move(shape)});
  };
  ValueId x = g.input("x", {kF, {samples, 2, 4, 4}});
  for (int k = 0; k < 2; ++k) {
    auto name = [&](std::string_view part) { return cat("layer", k, ".", part); };
    x = g.emit("conv", {x, state(name("weight"), StateKind::kParameter, {k == 0 ? 4 : 3, g.shape(x)[1], 3, 3})},
               {{"pads_low", std::vector<int64_t>{1, 1}}, {"pads_high", std::vector<int64_t>{1, 1}}});
    int64_t channels = g.shape(x)[1];
    std::vector<ValueId> out = g.emit_all("batch_norm",
                                          {x, state(name("scale"), StateKind::kParameter, {channels}),
                                           state(name("bias"), StateKind::kParameter, {channels})},
                                          {{"epsilon", 1e-3}});
    for (int s = 1; s <= 2; ++s) {
      std::string running = name(s == 1 ? "mean" : "variance");
      ValueId before = state(running, StateKind::kRunning, {channels});
      g.set_next(running, g.add(g.scale(before, kMomentum), g.scale(out[s], 1 - kMomentum)));
    }
    x = g.emit("relu", {out[0]});
  }
  g.output("logits", g.mean(x, {2, 3}, false));
  return std::move(g).finish();
}

struct Options {
  BatchNormGroup statistics = BatchNormGroup::kGlobal;
  int64_t groups = 1, micro_batches = 1;
  bool accumulate = false;
};

Graph training_graph(int64_t samples, const Options& o) {
  PassContext context;
  context.recipe.loss = {LossRecipe{.kind = LossKind::kCrossEntropy, .output = "logits"}};
  context.recipe.optimizer = default_optimizer(OptimizerKind::kSgd);
  context.recipe.semantics.batch_norm = o.statistics;
  context.micro_batches = o.micro_batches;
  context.accumulate = o.accumulate;
  context.keep_gradients = true;
  Graph g = *attach_loss(group_samples(conv_net(samples), o.groups), context);
  g = *build_backward(g, context);
  g = *remove_dead_nodes(*update_statistics(g, context), context);
  return *build_optimizer(g, context);
}

Tensor random_tensor(const TensorType& type, std::mt19937& rng) {
  Tensor t = Tensor::zeros(type);
  std::normal_distribution<double> normal(0.2, 0.7);
  for (double& x : t.f) x = normal(rng);
  for (int64_t& x : t.i) x = static_cast<int64_t>(rng() % 3);
  return t;
}

// Of one step's samples, the same for every graph that takes them in any number of runs.
struct Values {
  Tensors inputs, states;
};

Values values_for(const Graph& g, int64_t runs) {
  std::mt19937 rng(3);
  Values v;
  for (const GraphInput& in : g.inputs) {
    if (in.kind != InputKind::kData) continue;
    TensorType t = g.type(in.value);
    t.shape[0] *= runs;
    v.inputs[in.name] = random_tensor(t, rng);
  }
  for (const State& s : g.states) {
    if (s.kind == StateKind::kParameter || s.kind == StateKind::kRunning)
      v.states[s.name] = random_tensor(g.type(s.value), rng);
  }
  return v;
}

LocalProgram localized(const Graph& g, const Layout& layout, const BatchPlan& batch) {
  std::vector<std::string> warnings;
  auto planned = plan_shardings(g, Recipe{}, layout, batch, warnings);
  EXPECT_TRUE(planned.ok()) << planned.status();
  auto local = localize(planned->graph, planned->plan);
  EXPECT_TRUE(local.ok()) << local.status();
  return *std::move(local);
}

SpmdResult run_serial(const Graph& g, const Values& v, int64_t runs = 1) {
  return run_spmd(localized(g, {}, {.graph_batch = kSamples / runs, .micro_batches = runs}), v.inputs, v.states);
}

void expect_near(const Tensors& found, const Tensors& expected, const std::string& what) {
  for (const auto& [name, e] : expected) {
    if (name.rfind("accumulate/", 0) == 0) continue;  // holds this rank's part of the sum
    ASSERT_TRUE(found.count(name)) << what << " " << name;
    ASSERT_EQ(found.at(name).type, e.type) << what << " " << name;
    for (size_t k = 0; k < e.f.size(); ++k) EXPECT_NEAR(found.at(name).f[k], e.f[k], 1e-11) << what << " " << name;
  }
}

int count(const Graph& g, std::string_view op, Segment segment) {
  int n = 0;
  for (const Node& node : g.nodes) n += node.op->name == op && node.segment == segment;
  return n;
}

TEST(BatchStatistics_Global, AreSummedOverRanksAndEqualSerial) {
  Graph g = training_graph(kSamples, {});
  Values v = values_for(g, 1);
  SpmdResult serial = run_serial(g, v);
  for (int64_t ranks : {2, 4}) {
    LocalProgram local = localized(g, {.data = ranks}, {.graph_batch = kSamples, .batch_ranks = ranks});
    SpmdResult split = run_spmd(local, v.inputs, v.states);
    expect_near(split.outputs, serial.outputs, cat(ranks, " ranks"));
    expect_near(split.states, serial.states, cat(ranks, " ranks"));
    // Mean and variance of each norm, and the loss; nobody gathers samples. The sums that backward and the running
    // averages need are the same ones, not made again.
    EXPECT_EQ(count(local.graph, "all_gather", Segment::kForward), 0);
    EXPECT_EQ(count(local.graph, "all_reduce", Segment::kForward), 2 * 2 + 1);
    EXPECT_EQ(count(local.graph, "all_gather", Segment::kBackward), 0);
    // Backward's two sums of a norm travel together; and the gradients of the weights, which wait for each other.
    EXPECT_EQ(count(local.graph, "all_reduce", Segment::kBackward), 2 * 2 + 2);
    bucket_collectives(local, BucketSizes::all(1 << 20));
    EXPECT_EQ(count(local.graph, "all_reduce", Segment::kBackward), 2 + 1);
    SpmdResult joined = run_spmd(local, v.inputs, v.states);
    expect_near(joined.outputs, serial.outputs, cat(ranks, " ranks, joined"));
    expect_near(joined.states, serial.states, cat(ranks, " ranks, joined"));
  }
}

TEST(BatchStatistics_Replica, OfTwoGroupsAreThoseOfTwoBatches) {
  Graph grouped = training_graph(kSamples, {BatchNormGroup::kReplica, 2});
  Values v = values_for(grouped, 1);
  SpmdResult whole = run_serial(grouped, v);
  Graph half = training_graph(kSamples / 2, {});
  Tensors mean_outputs, mean_states;
  for (int part = 0; part < 2; ++part) {
    Values mine = v;
    for (auto& [name, t] : mine.inputs) {
      Tensor all = t;
      t.type.shape[0] /= 2;
      t.f.assign(all.f.begin() + static_cast<int64_t>(all.f.size()) / 2 * part,
                 all.f.begin() + static_cast<int64_t>(all.f.size()) / 2 * (part + 1));
      t.i.assign(all.i.begin() + static_cast<int64_t>(all.i.size()) / 2 * part,
                 all.i.begin() + static_cast<int64_t>(all.i.size()) / 2 * (part + 1));
    }
    SpmdResult r = run_spmd(localized(half, {}, {.graph_batch = kSamples / 2}), mine.inputs, mine.states);
    for (auto [from, to] : {std::pair{&r.outputs, &mean_outputs}, {&r.states, &mean_states}}) {
      for (const auto& [name, t] : *from) {
        Tensor& sum = to->try_emplace(name, Tensor::zeros(t.type)).first->second;
        for (size_t k = 0; k < t.f.size(); ++k) sum.f[k] += t.f[k] / 2;
      }
    }
  }
  // SGD and running averages are linear in what the halves see, and the loss is the mean of theirs.
  expect_near(whole.outputs, {{"loss", mean_outputs.at("loss")}}, "loss");
  expect_near(whole.states, mean_states, "state");
}

TEST(BatchStatistics_Replica, RanksAndMicroBatchesEqualSerialAndWaitForNoStatistic) {
  struct Case {
    int64_t ranks, parts, runs;
  };
  for (Case c : {Case{2, 1, 1}, {4, 1, 1}, {1, 2, 1}, {2, 2, 1}, {1, 4, 1}, {2, 1, 2}, {2, 2, 2}}) {
    std::string what = cat(c.ranks, " ranks, ", c.parts, " parts, ", c.runs, " runs");
    int64_t slices = std::min(c.ranks, c.runs), sharing = c.ranks / slices;
    bool accumulate = c.parts * c.runs > 1;
    Graph g = training_graph(kSamples / c.runs, {BatchNormGroup::kReplica, sharing * c.parts, c.runs, accumulate});
    Values v = values_for(g, c.runs);
    SpmdResult serial = run_serial(g, v, c.runs);
    BatchPlan batch{.graph_batch = kSamples / c.runs,
                    .micro_batches = c.runs,
                    .slice_ranks = slices,
                    .batch_ranks = sharing,
                    .parts = c.parts};
    LocalProgram local = localized(g, {.data = c.ranks}, batch);
    SpmdResult split = run_spmd(local, v.inputs, v.states);
    expect_near(split.outputs, serial.outputs, what);
    expect_near(split.states, serial.states, what);
    // Beside the loss's scalars: the running averages' terms, which only the update reads.
    std::vector<std::vector<NodeId>> readers = uses(local.graph);
    int statistics = 0;
    for (const Node& node : local.graph.nodes) {
      if (node.op->name != "all_reduce" || node.segment != Segment::kForward) continue;
      if (local.graph.type(node.outputs[0]).rank() == 0) continue;
      ++statistics;
      for (NodeId reader : readers[node.outputs[0]])
        EXPECT_GT(local.graph.nodes[reader].segment, Segment::kBackward) << what;
    }
    EXPECT_EQ(statistics, sharing > 1 && !accumulate ? 4 : 0) << what;
  }
}

}  // namespace
}  // namespace partita
