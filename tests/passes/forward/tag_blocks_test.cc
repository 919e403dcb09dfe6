#include "passes/forward/tag_blocks.h"

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

ValueId weight(Builder& b, Shape shape) {
  return b.state({.name = "w" + std::to_string(b.graph().states.size()), .kind = StateKind::kParameter},
                 {DType::kF64, std::move(shape)});
}

ValueId linear(Builder& b, ValueId x, int64_t out) { return b.matmul(x, weight(b, {b.shape(x).back(), out})); }

// Two residual steps, as a transformer's layer has them.
ValueId layer(Builder& b, ValueId x, ValueId mask) {
  ValueId a = b.emit("tanh", {linear(b, x, 8)}), g = b.emit("sigmoid", {linear(b, x, 8)});
  ValueId h = b.add(x, b.mul(b.mul(a, g), mask));
  return b.add(h, b.matmul(b.emit("relu", {linear(b, h, 32)}), b.transpose(weight(b, {8, 32}), {1, 0})));
}

Graph tagged(Builder b) { return *tag_blocks(std::move(b).finish(), {}); }

// Instances in order of the nodes, each with its number of nodes.
std::map<int32_t, int64_t> sizes(const Graph& g) {
  std::map<int32_t, int64_t> out;
  for (const Node& node : g.nodes) ++out[node.block];
  return out;
}

// All instances the same: op, attributes and types, node for node.
void expect_equal_instances(const Graph& g) {
  std::map<int32_t, std::vector<const Node*>> blocks;
  for (const Node& node : g.nodes) {
    if (node.block >= 0) blocks[node.block].push_back(&node);
  }
  for (const auto& [number, nodes] : blocks) {
    const auto& first = blocks.begin()->second;
    ASSERT_EQ(nodes.size(), first.size()) << "instance " << number;
    for (size_t k = 0; k < nodes.size(); ++k) {
      EXPECT_EQ(nodes[k]->op, first[k]->op);
      EXPECT_EQ(nodes[k]->attrs, first[k]->attrs);
    }
  }
}

TEST(Blocks_Transformer, LayersBetweenEmbeddingAndHead) {
  Builder b;
  ValueId ids = b.input("ids", {DType::kI64, {4}}), mask = b.emit("exp", {f64_input(b, "mask", {4, 8})});
  ValueId x = b.add(b.emit("gather", {weight(b, {10, 8}), ids}, {{"dim", int64_t{0}}}), weight(b, {8}));
  for (int k = 0; k < 5; ++k) x = layer(b, x, mask);
  b.output("logits", linear(b, b.emit("tanh", {x}), 10));
  Graph g = tagged(std::move(b));
  auto n = sizes(g);
  ASSERT_EQ(n.size(), 6u);  // five and what is outside
  EXPECT_EQ(n[-1], 5);
  for (int k = 0; k < 5; ++k) EXPECT_EQ(n[k], 12) << k;
  expect_equal_instances(g);
  EXPECT_TRUE(std::is_sorted(g.nodes.begin(), g.nodes.end(), [](const Node& a, const Node& b) {
    return a.block < b.block && a.block >= 0 && b.block >= 0;
  }));
}

TEST(Blocks_Transformer, AuxiliaryScalarsDoNotJoinLayers) {
  Builder b;
  ValueId x = f64_input(b, "x", {4, 8}), mask = f64_input(b, "mask", {4, 8}), loss = kNoValue;
  x = linear(b, x, 8);
  for (int k = 0; k < 4; ++k) {
    x = layer(b, x, mask);
    ValueId extra = b.reduce_sum(b.mul(x, x), {0, 1}, false);
    loss = loss == kNoValue ? extra : b.add(loss, extra);
  }
  b.output("loss", b.add(loss, b.reduce_sum(x, {0, 1}, false)));
  Graph g = tagged(std::move(b));
  auto n = sizes(g);
  ASSERT_EQ(n.size(), 5u);
  EXPECT_EQ(n[-1], 6);  // the first product, the last sum, four sums of scalars
  expect_equal_instances(g);
}

TEST(Blocks_EncoderDecoder, EncoderOutputIsSetAside) {
  Builder b;
  ValueId x = linear(b, f64_input(b, "x", {4, 8}), 8), mask = f64_input(b, "mask", {4, 8});
  for (int k = 0; k < 4; ++k) x = layer(b, x, mask);
  ValueId memory = x, y = linear(b, f64_input(b, "y", {4, 8}), 8);
  for (int k = 0; k < 6; ++k) y = b.add(layer(b, y, mask), b.emit("tanh", {linear(b, b.mul(y, memory), 8)}));
  b.output("out", linear(b, y, 3));
  auto n = sizes(tagged(std::move(b)));
  EXPECT_EQ(n.size(), 11u);
}

// Its one view for all decoder layers is made in the first of them.
TEST(Blocks_EncoderDecoder, AViewOfTheEncoderOutputIsSetAside) {
  Builder b;
  ValueId x = linear(b, f64_input(b, "x", {4, 8}), 8), mask = f64_input(b, "mask", {4, 8});
  for (int k = 0; k < 4; ++k) x = layer(b, x, mask);
  ValueId memory = x, view = kNoValue, y = linear(b, f64_input(b, "y", {16, 2}), 2);
  for (int k = 0; k < 6; ++k) {
    y = b.add(y, b.emit("tanh", {linear(b, b.emit("relu", {linear(b, y, 32)}), 2)}));
    ValueId h = b.emit("tanh", {linear(b, y, 2)});
    if (view == kNoValue) view = b.reshape(memory, {16, 2});
    y = b.add(y, linear(b, b.mul(h, view), 2));
  }
  b.output("out", linear(b, y, 3));
  EXPECT_EQ(sizes(tagged(std::move(b))).size(), 11u);
}

TEST(Blocks_Towers, TheFirstOnesResultIsSetAside) {
  Builder b;
  ValueId x = linear(b, f64_input(b, "x", {4, 8}), 8), mask = f64_input(b, "mask", {4, 8});
  for (int k = 0; k < 4; ++k) x = layer(b, x, mask);
  ValueId y = linear(b, f64_input(b, "y", {4, 8}), 8);
  for (int k = 0; k < 6; ++k) y = layer(b, y, mask);
  b.output("out", b.matmul(b.emit("tanh", {x}), b.transpose(b.emit("tanh", {y}), {1, 0})));
  EXPECT_EQ(sizes(tagged(std::move(b))).size(), 11u);
}

TEST(Blocks_Transformer, LayersWithAndWithoutAWindowAreBlocksAlike) {
  Builder b;
  ValueId x = linear(b, f64_input(b, "x", {4, 8}), 8), mask = f64_input(b, "mask", {4, 8});
  ValueId window = b.emit("exp", {f64_input(b, "window", {1, 8})});
  for (int k = 0; k < 6; ++k) x = layer(b, x, k % 3 == 2 ? mask : window);
  b.output("y", linear(b, x, 3));
  EXPECT_EQ(sizes(tagged(std::move(b))).size(), 7u);
}

TEST(Blocks_None, NothingRepeats) {
  Builder b;
  ValueId x = f64_input(b, "x", {4, 8});
  b.output("y", linear(b, b.emit("tanh", {linear(b, b.emit("relu", {linear(b, x, 7)}), 6)}), 5));
  EXPECT_EQ(sizes(tagged(std::move(b))).size(), 1u);
  Builder empty;
  EXPECT_TRUE(tagged(std::move(empty)).nodes.empty());
}

TEST(Blocks_Stages, SeveralKindsOfBlock) {
  Builder b;
  ValueId x = linear(b, f64_input(b, "x", {4, 8}), 8), mask = f64_input(b, "mask", {4, 8});
  for (int k = 0; k < 3; ++k) x = layer(b, x, mask);
  x = linear(b, x, 16);
  for (int k = 0; k < 4; ++k) x = b.add(x, b.emit("tanh", {linear(b, b.emit("relu", {linear(b, x, 16)}), 16)}));
  b.output("y", linear(b, x, 3));
  EXPECT_EQ(sizes(tagged(std::move(b))).size(), 8u);
}

TEST(Blocks_Sections, OfWhatDoesNotRepeat) {
  Builder b;
  ValueId x = f64_input(b, "x", {4, 8}), mask = f64_input(b, "mask", {4, 16});
  for (int64_t width : {8, 9, 10, 11, 12}) x = b.emit("tanh", {linear(b, x, width)});
  x = linear(b, x, 16);
  for (int k = 0; k < 3; ++k)
    x = b.add(x, b.mul(b.emit("tanh", {linear(b, b.emit("relu", {linear(b, x, 16)}), 16)}), mask));
  for (int64_t width : {15, 14, 13, 12}) x = b.emit("tanh", {linear(b, x, width)});
  b.output("y", linear(b, x, 3));
  const Graph g = tagged(std::move(b));
  // Numbered as they follow one another; the head is in none.
  int32_t last = 0;
  for (const Node& node : g.nodes) {
    if (node.block < 0) continue;
    EXPECT_TRUE(node.block == last || node.block == last + 1) << node.block;
    last = node.block;
  }
  EXPECT_EQ(g.nodes.back().block, -1);
  auto products = [&](int32_t block) {
    return std::count_if(g.nodes.begin(), g.nodes.end(),
                         [&](const Node& node) { return node.block == block && node.op->name == "matmul"; });
  };
  int repeated = 0;
  for (int32_t block = 0; block <= last; ++block) {
    EXPECT_GE(products(block), 2) << block;
    repeated += sizes(g)[block] == 6;  // two products, relu, tanh, mask and sum
  }
  EXPECT_GE(repeated, 3);
  EXPECT_EQ(products(-1), 1);
}

TEST(Blocks_Large, NearLinear) {
  Builder b;
  ValueId x = linear(b, f64_input(b, "x", {4, 8}), 8), mask = f64_input(b, "mask", {4, 8});
  for (int k = 0; k < 3000; ++k) x = layer(b, x, mask);
  b.output("y", linear(b, x, 3));
  EXPECT_EQ(sizes(tagged(std::move(b))).size(), 3001u);
}

}  // namespace
}  // namespace partita
