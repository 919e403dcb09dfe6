// Which values become narrow, and that the values stay within their rounding.
#include "passes/forward/mixed_precision.h"

#include <algorithm>

#include "ir/graph/verify.h"
#include "passes/training/build_backward.h"
#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

ValueId parameter(Builder& b, std::string name, Shape shape) {
  return b.state({.name = std::move(name), .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                 {DType::kF32, std::move(shape)});
}

Graph narrowed(const Graph& graph, Precision precision = Precision::kBf16) {
  PassContext context{.recipe = {.precision = precision}};
  auto now = mixed_precision(graph, context);
  EXPECT_TRUE(now.ok()) << now.status();
  EXPECT_TRUE(verify(*now, Phase::kImported).ok()) << verify(*now, Phase::kImported);
  return *std::move(now);
}

DType result_of(const Graph& graph, std::string_view op) { return graph.type(the(graph, op).outputs[0]).dtype; }

// x + gelu(norm(x) w + bias), squared and summed.
Graph block() {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {4, 8}}), scale = parameter(b, "scale", {8}), w = parameter(b, "w", {8, 8}),
          bias = parameter(b, "bias", {8});
  ValueId y = b.emit_all("layer_norm", {x, scale}, {{"axis", 1}, {"epsilon", 1e-5}})[0];
  y = b.emit("gelu", {b.add(b.matmul(y, w), bias)}, {{"approximate", 0}});
  y = b.add(x, y);
  b.output("loss", b.reduce_sum(b.mul(y, y), {0, 1}, false));
  return std::move(b).finish();
}

TEST(MixedPrecision_Block, ProductsAreNarrowAndTheResidualStreamIsWide) {
  Graph g = narrowed(block());
  EXPECT_EQ(result_of(g, "layer_norm"), DType::kF32);
  EXPECT_EQ(result_of(g, "matmul"), DType::kBF16);
  EXPECT_EQ(result_of(g, "gelu"), DType::kBF16);  // the bias is no reason to go on in f32 …
  const Node& add = the(g, "add");
  EXPECT_EQ(g.type(add.outputs[0]).dtype, DType::kF32);  // … nor is it rounded
  EXPECT_EQ(result_of(g, "mul"), DType::kF32);
  EXPECT_EQ(g.type(g.outputs[0].value).dtype, DType::kF32);
  for (const State& s : g.states) EXPECT_EQ(g.type(s.value).dtype, DType::kF32) << s.name;
  expect_same_values(block(), g, 0.1);
}

TEST(MixedPrecision_Block, WeightsAreCopiedOnceAStep) {
  Graph g = narrowed(block());
  int64_t copies = std::count_if(g.nodes.begin(), g.nodes.end(),
                                 [](const Node& n) { return n.segment == Segment::kPrologue && n.op->name == "cast"; });
  EXPECT_EQ(copies, 1);  // w: scale and bias are used as they are
}

TEST(MixedPrecision_Gradients, OfParametersAreWide) {
  PassContext context{.recipe = {.precision = Precision::kFp16}};
  auto g = build_backward(narrowed(block(), Precision::kFp16), context);
  ASSERT_TRUE(g.ok()) << g.status();
  int gradients = 0;
  for (const GraphOutput& o : g->outputs) {
    EXPECT_EQ(g->type(o.value).dtype, DType::kF32) << o.name;
    gradients += o.name.starts_with("grad/");
  }
  EXPECT_EQ(gradients, 3);
  int64_t narrow = 0;
  for (const Node& n : g->nodes)
    narrow += n.segment == Segment::kBackward && n.op->name == "matmul" && g->type(n.outputs[0]).dtype == DType::kF16;
  EXPECT_EQ(narrow, 2);  // w's gradient, and that of what the norm gives
}

TEST(MixedPrecision_Weight, IsCopiedBeforeItIsMoved) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {2, 3, 4}}), w = parameter(b, "w", {4, 6});
  ValueId part = b.emit("slice", {b.reshape(w, {1, 4, 6})},
                        {{"starts", std::vector<int64_t>{0, 0, 0}},
                         {"limits", std::vector<int64_t>{1, 4, 3}},
                         {"strides", std::vector<int64_t>{1, 1, 1}}});
  b.output("y", b.matmul(x, part));
  Graph g = narrowed(std::move(b).finish());
  EXPECT_EQ(result_of(g, "slice"), DType::kF32);  // the old one, now dead
  ASSERT_EQ(count(g, "slice"), 2);
  const Node& copy = the(g, "matmul");
  EXPECT_EQ(g.producer(copy.inputs[1])->op->name, "slice");
  EXPECT_EQ(g.type(g.outputs[0].value).dtype, DType::kF32);  // an output keeps its type
}

TEST(MixedPrecision_Data, AreNotCopiedInThePrologue) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {2, 4}}), w = parameter(b, "w", {4, 3});
  b.output("y", b.matmul(x, w));
  Graph g = narrowed(std::move(b).finish());
  EXPECT_EQ(g.producer(the(g, "matmul").inputs[0])->segment, Segment::kForward);
  EXPECT_EQ(g.producer(the(g, "matmul").inputs[1])->segment, Segment::kPrologue);
}

TEST(MixedPrecision_FullPrecision, ChangesNothing) {
  for (Precision p : {Precision::kFp32, Precision::kTf32}) EXPECT_EQ(count(narrowed(block(), p), "cast"), 0);
}

TEST(MixedPrecision_DoublePrecision, StaysDouble) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 4});
  b.output("y", b.matmul(x, b.transpose(x, {1, 0})));
  EXPECT_EQ(count(narrowed(std::move(b).finish()), "cast"), 0);
}

}  // namespace
}  // namespace partita
