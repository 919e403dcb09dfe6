// Positions split over ranks, under a causal mask: attention is exchanged to heads and back.
#include <gtest/gtest.h>

#include <random>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "partitioner/communicate/bucket.h"
#include "partitioner/shard/plan_shardings.h"
#include "passes/forward/attach_loss.h"
#include "passes/training/build_backward.h"
#include "passes/training/build_optimizer.h"
#include "tests/partitioner/support/spmd.h"

namespace partita {
namespace {

constexpr DType kF = DType::kF64;

struct Heads {
  int64_t batch, query, key;
};

// Embedding, one attention with `heads.query` heads that share `heads.key` heads of keys and values, a classifier.
Graph training_graph(Heads heads) {
  const int64_t s = 8, size = 4, d = heads.query * size;
  Builder g;
  auto parameter = [&](const char* name, Shape shape) {
    return g.state({.name = name, .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                   {kF, std::move(shape)});
  };
  ValueId ids = g.input("ids", {DType::kI64, {heads.batch, s}});
  ValueId x = g.emit("gather", {parameter("embedding", {5, d}), ids}, {{"dim", int64_t{0}}});
  auto project = [&](const char* name, int64_t count) {
    ValueId y = g.matmul(g.reshape(x, {heads.batch * s, d}), parameter(name, {d, count * size}));
    return g.transpose(g.reshape(y, {heads.batch, s, count, size}), {0, 2, 1, 3});
  };
  ValueId q = project("query", heads.query), k = project("key", heads.key), v = project("value", heads.key);
  ValueId a = g.emit_all("attention", {q, k, v}, {{"scale", 0.5}, {"causal", int64_t{1}}})[0];
  a = g.reshape(g.transpose(a, {0, 2, 1, 3}), {heads.batch * s, d});
  x = g.add(g.reshape(x, {heads.batch * s, d}), g.matmul(a, parameter("out", {d, d})));
  g.output("logits", g.reshape(g.matmul(x, parameter("head", {d, 7})), {heads.batch, s, 7}));
  PassContext context;
  context.recipe.loss = {LossRecipe{.kind = LossKind::kCrossEntropy, .output = "logits"}};
  context.recipe.optimizer = default_optimizer(OptimizerKind::kSgd);
  context.keep_gradients = true;
  Graph graph = *attach_loss(std::move(g).finish(), context);
  return *build_optimizer(*build_backward(graph, context), context);
}

LocalProgram localized(const Graph& g, const Layout& layout, const BatchPlan& batch) {
  std::vector<std::string> warnings;
  auto planned = plan_shardings(g, Recipe{}, layout, batch, warnings);
  EXPECT_TRUE(planned.ok()) << planned.status();
  EXPECT_TRUE(warnings.empty()) << warnings[0];
  return *localize(planned->graph, planned->plan);
}

struct Counts {
  int exchanges = 0, gathers = 0;
  int64_t attention_elements = 0;  // of the queries that a rank attends for
};

Counts count(const Graph& g) {
  Counts c;
  for (const Node& node : g.nodes) {
    c.exchanges += node.op->name == "all_to_all";
    c.gathers += node.op->name == "all_gather" && node.segment != Segment::kUpdate;
    if (node.op->name == "attention") c.attention_elements += elements(g.type(node.outputs[0]).shape);
  }
  return c;
}

TEST(ContextParallel_CausalAttention, IsExchangedToHeadsAndEqualsSerial) {
  struct Case {
    Heads heads;
    int64_t context, data;
    int exchanges;  // -1: gathers too
  };
  const Case kCases[] = {
      {{2, 4, 4}, 2, 1, 8},  // queries, keys, values, result; and their gradients
      {{2, 4, 4}, 4, 1, 8},  {{2, 4, 2}, 2, 2, 8},
      {{4, 4, 2}, 4, 1, 8},   // two heads of keys: samples are what four ranks share
      {{1, 8, 2}, 4, 1, -1},  // nor samples: the queries of a head of keys are
      {{1, 8, 4}, 8, 1, -1},  // nor they: both are, along an axis each
      {{1, 3, 3}, 2, 1, -1},  // nor both: queries keep their positions
  };
  for (const Case& c : kCases) {
    std::string what = cat("batch ", c.heads.batch, ", heads ", c.heads.query, " over ", c.heads.key, ", context ",
                           c.context, ", data ", c.data);
    Graph g = training_graph(c.heads);
    std::mt19937 rng(2);
    std::normal_distribution<double> normal(0, 0.7);
    Tensors inputs, states;
    for (const GraphInput& in : g.inputs) {
      Tensor& t = inputs[in.name] = Tensor::zeros(g.type(in.value));
      for (int64_t& x : t.i) x = static_cast<int64_t>(rng() % 5);
    }
    for (const State& s : g.states) {
      if (s.kind != StateKind::kParameter) continue;
      Tensor& t = states[s.name] = Tensor::zeros(g.type(s.value));
      for (double& x : t.f) x = normal(rng);
    }
    SpmdResult serial = run_spmd(localized(g, {}, {.graph_batch = c.heads.batch}), inputs, states);
    LocalProgram local =
        localized(g, {.data = c.data, .context = c.context}, {.graph_batch = c.heads.batch, .batch_ranks = c.data});
    LocalProgram joined = local;
    bucket_collectives(joined, BucketSizes::all(1 << 20));
    for (const LocalProgram& program : {local, joined}) {
      SpmdResult split = run_spmd(program, inputs, states);
      for (const auto& [from, to] : {std::pair{&serial.outputs, &split.outputs}, {&serial.states, &split.states}}) {
        for (const auto& [name, e] : *from) {
          for (size_t k = 0; k < e.f.size(); ++k) ASSERT_NEAR(to->at(name).f[k], e.f[k], 1e-11) << what << " " << name;
        }
      }
    }
    Counts found = count(local.graph);
    if (c.exchanges >= 0) {
      EXPECT_EQ(found.exchanges, c.exchanges) << what;
      EXPECT_EQ(found.gathers, 0) << what;
      // Queries, keys and values travel together, and so do their gradients.
      EXPECT_EQ(count(joined.graph).exchanges, c.exchanges / 2) << what;
    }
    int64_t whole = c.heads.batch * c.heads.query * 8 * 4;
    EXPECT_EQ(found.attention_elements, whole / c.data / c.context) << what;
  }
}

}  // namespace
}  // namespace partita
