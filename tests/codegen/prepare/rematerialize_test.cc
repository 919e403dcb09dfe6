// What is computed again in the backward part, and what is not.
#include "codegen/prepare/rematerialize.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/graph/builder.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

int count(const Graph& graph, std::string_view op, Segment segment) {
  int n = 0;
  for (const Node& node : graph.nodes) n += node.op->name == op && node.segment == segment;
  return n;
}

int64_t arena(const Graph& graph) {
  auto program = emit_program(local_program(graph));
  EXPECT_TRUE(program.ok()) << program.status().message();
  return program->region_bytes[static_cast<int>(runtime::Region::kArena)];
}

// h = tanh(x w) and y = h v, with the gradient of v; `source_lives`: the backward part reads x w too.
Graph layer(int64_t rows, bool source_lives) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {rows, 64}}),
          w = b.state({.name = "w", .kind = StateKind::kFrozen}, {DType::kF32, {64, 256}}),
          v = b.state({.name = "v", .kind = StateKind::kFrozen}, {DType::kF32, {256, 64}});
  ValueId u = b.matmul(x, w), h = b.emit("tanh", {u}), y = b.matmul(h, v);
  b.context().segment = Segment::kBackward;
  ValueId g = b.emit("exp", {y});
  b.output("dv", b.matmul(h, g, true, false));
  ValueId dh = b.matmul(g, v, false, true);
  b.output("du", source_lives ? b.mul(dh, b.emit("exp", {u})) : dh);
  return std::move(b).finish();
}

TEST(Rematerialize_Activation, IsMadeAgainFromWhatLives) {
  Graph graph = layer(512, true), now = rematerialize(graph).graph;
  EXPECT_EQ(count(graph, "tanh", Segment::kBackward), 0);
  EXPECT_EQ(count(now, "tanh", Segment::kForward), 1);
  ASSERT_EQ(count(now, "tanh", Segment::kBackward), 1);
  for (const Node& node : now.nodes) {
    if (node.segment != Segment::kBackward || node.op->name != "matmul" || node.attrs.i("transpose_a", 0) == 0)
      continue;
    EXPECT_EQ(now.producer(node.inputs[0])->segment, Segment::kBackward);
  }
}

TEST(Rematerialize_Activation, StaysWhereItsSourceDies) {
  EXPECT_EQ(count(rematerialize(layer(512, false)).graph, "tanh", Segment::kBackward), 0);
}

TEST(Rematerialize_Activation, StaysWhereItIsSmall) {
  EXPECT_EQ(count(rematerialize(layer(16, true)).graph, "tanh", Segment::kBackward), 0);
}

// In parts of rows values are as much smaller, and it is as much memory that is kept.
TEST(Rematerialize_Activation, OfWhichAPartIsSmallIsMadeAgain) {
  EXPECT_EQ(count(rematerialize(layer(128, true), 1).graph, "tanh", Segment::kBackward), 0);
  EXPECT_EQ(count(rematerialize(layer(128, true), 2).graph, "tanh", Segment::kBackward), 1);
}

// h = tanh(x w), which a gradient reads forty nodes behind the only reader of x w; `weight`: one of a weight.
Graph source_read_far_ahead(bool weight) {
  constexpr int64_t kRows = 512;
  constexpr int kBetween = 40;
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {kRows, 64}}),
          w = b.state({.name = "w", .kind = StateKind::kFrozen}, {DType::kF32, {64, 256}});
  ValueId u = b.matmul(x, w), h = b.emit("tanh", {u});
  b.output("y", b.matmul(h, w, false, true));
  b.context().segment = Segment::kBackward;
  ValueId g = b.emit("exp", {u});
  for (int k = 0; k < kBetween; ++k) g = b.emit("exp", {g});
  b.context().weight_gradient = weight;
  b.output("dh", b.matmul(h, g, true, false));
  return std::move(b).finish();
}

// So many parts of a product stand between the first reader and the last one of what it takes.
TEST(Rematerialize_Activation, OfWhichPartsStandApartIsMadeAgain) {
  const Graph graph = source_read_far_ahead(false);
  for (int64_t parts : {1, 2, 4})
    EXPECT_EQ(count(rematerialize(graph, parts).graph, "tanh", Segment::kBackward), parts > 1) << parts;
}

// What is made again and the gradient of the same value are one sweep: the activation, its gradient and its sum of rows
// in backward, the activation in forward.
TEST(Rematerialize_Activation, IsMadeBesideItsGradient) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {512, 64}}), g = b.input("g", {DType::kF32, {512, 64}}),
          w = b.state({.name = "w", .kind = StateKind::kFrozen}, {DType::kF32, {64, 256}}),
          v = b.state({.name = "v", .kind = StateKind::kFrozen}, {DType::kF32, {256, 64}});
  ValueId u = b.matmul(x, w), h = b.emit("gelu", {u});
  b.output("y", b.matmul(h, v));
  b.context().segment = Segment::kBackward;
  ValueId dh = b.matmul(g, v, false, true);
  b.output("dv", b.matmul(h, g, true, false));
  ValueId du = b.emit("gelu_grad", {dh, u});
  b.output("du", du);
  b.output("sums", b.reduce_sum(du, {0}, false));
  const Graph graph = std::move(b).finish();
  ASSERT_EQ(count(rematerialize(graph).graph, "gelu", Segment::kBackward), 1);
  // The last one adds up what the units of the sweep leave of the sums.
  EXPECT_EQ(compare_with_reference(graph), 3);
}

// The last that reads x w is far ahead of what reads the activation where gradients of weights run apart.
TEST(Rematerialize_Activation, IsMadeWhereItsSourceIsReadLastForAGradientThatRunsApart) {
  const Graph graph = source_read_far_ahead(true);
  EXPECT_EQ(count(rematerialize(graph).graph, "tanh", Segment::kBackward), 0);
  const Graph now = rematerialize(graph, 1, true).graph;
  ASSERT_EQ(count(now, "tanh", Segment::kBackward), 1);
  const auto again = std::ranges::find_if(now.nodes, [](const Node& n) { return n.segment == Segment::kBackward; });
  EXPECT_EQ(again->op->name, "tanh");
  EXPECT_FALSE(again->weight_gradient);
  EXPECT_EQ(again->outputs[0], now.nodes.back().inputs[0]);
  // Where the product's block leaves what it reads to the host, it comes up for the product.
  Graph blocks = graph;
  for (Node& node : blocks.nodes) node.block = 1;
  EXPECT_EQ(count(rematerialize(blocks, 1, true, {true, false}).graph, "tanh", Segment::kBackward), 1);
  EXPECT_EQ(count(rematerialize(blocks, 1, true, {false, true}).graph, "tanh", Segment::kBackward), 0);
}

// Several layers: the arena holds one activation a layer less.
TEST(Rematerialize_Layers, NeedLessMemory) {
  constexpr int kLayers = 6;
  constexpr int64_t kBytes = 512 * 256 * 4;
  auto network = [&](bool again) {
    Builder b;
    ValueId x = b.input("x", {DType::kF32, {512, 256}}),
            w = b.state({.name = "w", .kind = StateKind::kFrozen}, {DType::kF32, {256, 256}});
    std::vector<ValueId> u, h;
    for (int k = 0; k < kLayers; ++k) {
      u.push_back(b.matmul(k == 0 ? x : h.back(), w));
      h.push_back(b.emit("tanh", {u.back()}));
    }
    b.context().segment = Segment::kBackward;
    ValueId g = h.back();
    for (int k = kLayers; k-- > 0;) {
      ValueId du = b.mul(g, b.emit("exp", {u[k]}));
      b.output("dw" + std::to_string(k), b.matmul(k == 0 ? x : h[k - 1], du, true, false));
      g = b.matmul(du, w, false, true);
    }
    b.output("dx", g);
    Graph graph = std::move(b).finish();
    if (again) {
      EXPECT_EQ(count(rematerialize(graph).graph, "tanh", Segment::kBackward), kLayers);
      return arena(graph);
    }
    // The same with results that the outside wants, so that they are kept.
    for (int k = 0; k < kLayers; ++k) graph.outputs.push_back({"h" + std::to_string(k), h[k]});
    return arena(graph);
  };
  EXPECT_LE(network(true), network(false) - 3 * kBytes);
}

// A long row of elementwise nodes is not computed again as a whole: each value is made from one near by.
TEST(Rematerialize_LongChain, IsCutIntoShortOnes) {
  constexpr int kLength = 2000;
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {512, 256}});
  std::vector<ValueId> h{x};
  for (int k = 0; k < kLength; ++k) h.push_back(b.emit("tanh", {h.back()}));
  b.context().segment = Segment::kBackward;
  ValueId g = h.back();
  for (int k = kLength; k > 0; --k) g = b.mul(g, h[k]);
  b.output("dx", g);
  Graph now = rematerialize(b.graph()).graph;
  EXPECT_GT(count(now, "tanh", Segment::kBackward), 0);
  EXPECT_LT(count(now, "tanh", Segment::kBackward), kLength);
}

}  // namespace
}  // namespace partita
