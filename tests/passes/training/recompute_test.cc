// What the backward part reads under each mode, and that nothing else changes.
#include "passes/training/recompute.h"

#include <set>

#include "base/cat.h"
#include "ir/graph/verify.h"
#include "passes/forward/tag_blocks.h"
#include "passes/training/build_backward.h"
#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

// Three blocks of x + dropout(tanh(x w)) v, the output of the last squared and summed.
Graph blocks() {
  Builder b;
  ValueId x = b.input("x", {DType::kF64, {4, 6}}),
          step = b.state({.name = "step", .kind = StateKind::kStep, .parameter = {}, .initial = {}}, {DType::kI64, {}});
  for (int k = 0; k < 3; ++k) {
    auto weight = [&](std::string name, Shape shape) {
      return b.state({.name = name + std::to_string(k), .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                     {DType::kF64, std::move(shape)});
    };
    b.context().block = k;
    ValueId h = b.emit("tanh", {b.matmul(x, weight("w", {6, 8}))});
    ValueId index = b.reshape(b.emit("iota", {}, {{"size", 32}, {"to", DType::kI64}}), {4, 8});
    ValueId noise = b.emit("uniform", {index, step}, {{"seed", 1}, {"instance", k}});
    ValueId keep = b.emit("lt", {noise, b.scalar(DType::kF32, 0.5)});
    h = b.select(keep, h, b.scalar(DType::kF64, 0));
    x = b.add(x, b.matmul(h, weight("v", {8, 6})));
  }
  b.context().block = -1;
  b.output("loss", b.reduce_sum(b.mul(x, x), {0, 1}, false));
  PassContext context;
  auto g = build_backward(std::move(b).finish(), context);
  EXPECT_TRUE(g.ok()) << g.status();
  return *std::move(g);
}

Graph recomputed(RecomputeMode mode) {
  PassContext context{.recipe = {.recompute = mode}};
  auto g = recompute(blocks(), context);
  EXPECT_TRUE(g.ok()) << g.status();
  EXPECT_TRUE(verify(*g, Phase::kTraining).ok()) << verify(*g, Phase::kTraining);
  return *std::move(g);
}

int64_t in_backward(const Graph& graph, std::string_view op) {
  int64_t n = 0;
  for (const Node& node : graph.nodes) n += node.op->name == op && node.segment == Segment::kBackward;
  return n;
}

// Names of the ops whose forward results the backward part reads, once for each result.
std::map<std::string, int> kept(const Graph& graph) {
  std::set<ValueId> values;
  for (const Node& node : graph.nodes) {
    for (ValueId v : node.inputs) {
      if (node.segment == Segment::kBackward && v != kNoValue && graph.producer(v) != nullptr &&
          graph.producer(v)->segment == Segment::kForward)
        values.insert(v);
    }
  }
  std::map<std::string, int> ops;
  for (ValueId v : values) ++ops[std::string(graph.producer(v)->op->name)];
  return ops;
}

TEST(Recompute_Full, KeepsWhatEntersABlock) {
  Graph g = recomputed(RecomputeMode::kFull), before = blocks();
  EXPECT_EQ(kept(g), (std::map<std::string, int>{{"add", 3}}));            // x of blocks 1 and 2, and of the loss
  EXPECT_EQ(in_backward(g, "matmul"), in_backward(before, "matmul") + 3);  // x w; h v is not asked for
  EXPECT_EQ(in_backward(g, "uniform"), 3);
  expect_same_values(before, g, 0);
}

TEST(Recompute_Selective, KeepsProducts) {
  Graph g = recomputed(RecomputeMode::kSelective), before = blocks();
  EXPECT_EQ(kept(g), (std::map<std::string, int>{{"add", 3}, {"matmul", 3}}));
  EXPECT_EQ(in_backward(g, "matmul"), in_backward(before, "matmul"));
  EXPECT_EQ(in_backward(g, "tanh"), 3);
  expect_same_values(before, g, 0);
}

TEST(Recompute_NoneAndAuto, ChangeNothing) {
  for (RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kAuto})
    EXPECT_EQ(recomputed(mode).nodes.size(), blocks().nodes.size());
}

TEST(Recompute_Pin, GoesBeforeTheRecipe) {
  PassContext context{.recipe = {.recompute = RecomputeMode::kFull}};
  context.recipe.pin.recompute = RecomputeMode::kNone;
  EXPECT_EQ(recompute(blocks(), context)->nodes.size(), blocks().nodes.size());
}

TEST(Recompute_ByBlock, GivesEachItsOwn) {
  PassContext context;
  context.recipe.pin.recompute_blocks = {RecomputeMode::kNone, RecomputeMode::kFull};
  auto g = recompute(blocks(), context);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(in_backward(*g, "uniform"), 1);
  EXPECT_EQ(in_backward(*g, "matmul"), in_backward(blocks(), "matmul") + 1);
  expect_same_values(blocks(), *g, 0);
  context.recipe.pin.recompute_blocks.resize(4, RecomputeMode::kFull);
  EXPECT_EQ(recompute(blocks(), context).status().message(),
            "pin recompute: block 3 is named, and the model has 3 blocks, numbered from 0");
}

// y = tanh(x) u; x + tanh(attention(y, y, y) v), squared and summed; of each position the products.
Graph attending() {
  Builder b;
  ValueId x = b.input("x", {DType::kF64, {2, 2, 4, 6}});
  auto weight = [&](std::string name) {
    return b.state({.name = std::move(name), .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                   {DType::kF64, {6, 6}});
  };
  b.context().block = 0;
  auto product = [&](ValueId v, std::string name) {
    return b.reshape(b.matmul(b.reshape(v, {16, 6}), weight(std::move(name))), {2, 2, 4, 6});
  };
  ValueId y = product(b.emit("tanh", {x}), "u");
  ValueId attended = b.emit_all("attention", {y, y, y}, {{"scale", 0.5}, {"causal", true}})[0];
  ValueId out = b.add(x, b.emit("tanh", {product(attended, "v")}));
  b.context().block = -1;
  b.output("loss", b.reduce_sum(b.mul(out, out), {0, 1, 2, 3}, false));
  PassContext context;
  auto g = build_backward(std::move(b).finish(), context);
  EXPECT_TRUE(g.ok()) << g.status();
  return *std::move(g);
}

TEST(Recompute_AttentionAndMlp, AreTheTwoPartsOfFull) {
  std::map<RecomputeMode, int64_t> again;
  for (RecomputeMode mode : {RecomputeMode::kAttention, RecomputeMode::kMlp, RecomputeMode::kFull}) {
    PassContext context{.recipe = {.recompute = mode}};
    auto g = recompute(attending(), context);
    ASSERT_TRUE(g.ok()) << g.status();
    EXPECT_EQ(in_backward(*g, "attention"), mode == RecomputeMode::kMlp ? 0 : 1);
    for (bool node : recomputed_nodes(attending(), mode)) again[mode] += node;
    EXPECT_EQ(static_cast<int64_t>(g->nodes.size() - attending().nodes.size()), again[mode]);
    expect_same_values(attending(), *g, 0);
  }
  EXPECT_GT(again[RecomputeMode::kAttention], 0);
  EXPECT_GT(again[RecomputeMode::kMlp], 0);
  EXPECT_EQ(again[RecomputeMode::kAttention] + again[RecomputeMode::kMlp], again[RecomputeMode::kFull]);
}

TEST(Recompute_AllButAttention, KeepsAttentionsResultsAlone) {
  PassContext context{.recipe = {.recompute = RecomputeMode::kAllButAttention}};
  const Graph before = attending();
  auto g = recompute(before, context);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(in_backward(*g, "attention"), 0);
  const std::vector<bool> some = recomputed_nodes(before, RecomputeMode::kAllButAttention),
                          all = recomputed_nodes(before, RecomputeMode::kFull);
  for (size_t n = 0; n < all.size(); ++n)
    EXPECT_EQ(some[n], all[n] && before.nodes[n].op->name != "attention") << before.nodes[n].op->name;
  expect_same_values(before, *g, 0);
}

// A U-Net: two levels down and up again, what the way down makes read on the way up.
Graph two_levels() {
  Builder b;
  int states = 0;
  auto product = [&](ValueId x, int64_t out) {
    const int64_t in = b.shape(x)[1];
    ValueId w = b.state({.name = cat("w", states++), .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                        {DType::kF64, {in, out}});
    return b.emit("tanh", {b.matmul(x, w)});
  };
  auto twice = [&](ValueId x, int64_t out) { return product(product(x, out), out); };
  ValueId high = twice(b.input("x", {DType::kF64, {4, 3}}), 8), low = twice(high, 6), middle = twice(low, 5);
  ValueId up = twice(b.add(low, product(middle, 6)), 6);
  up = twice(b.add(high, product(up, 8)), 8);
  b.output("loss", b.reduce_sum(product(up, 2), {0, 1}, false));
  PassContext context;
  return *build_backward(*tag_blocks(std::move(b).finish(), context), context);
}

TEST(Recompute_Sections, OfANetworkThatDoesNotRepeat) {
  const Graph before = two_levels();
  EXPECT_EQ(in_backward(before, "tanh"), 0);
  int most = 0;
  for (const Node& node : before.nodes) most = std::max(most, node.block);
  EXPECT_GE(most, 2);
  PassContext context{.recipe = {.recompute = RecomputeMode::kFull}};
  auto g = recompute(before, context);
  ASSERT_TRUE(g.ok()) << g.status();
  int all = 0, left = 0;
  for (const auto& [op, n] : kept(before)) all += n;
  for (const auto& [op, n] : kept(*g)) left += n;
  EXPECT_LE(left, all * 2 / 3) << all;
  expect_same_values(before, *g, 0);
}

}  // namespace
}  // namespace partita
