// The nests of a few groups, as text. On a deliberate change, print describe_program and copy.
#include <gtest/gtest.h>

#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

// The kernels' nests alone: descriptions without operands and arena.
std::string nests(const Graph& graph) {
  std::string text = describe_program(local_program(graph)), kept;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find('\n', at);
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.rfind("     ", 0) != 0 && line.rfind("  ->", 0) != 0 && line.rfind("arena", 0) != 0) kept += line + "\n";
  }
  return kept;
}

TEST(Nests_Softmax, ThreePasses) {
  Builder b;
  b.output("y", b.emit("softmax", {b.input("x", {DType::kF32, {4, 9, 100}})}, {{"dim", int64_t{2}}}));
  EXPECT_EQ(nests(b.graph()), R"(forward kernel (div) rows [36] columns [100]: f32 -> f32
  36 rows a unit
  %0 = load 0 [100 1]
  %1 = max over columns of %0
  %2 = sub %0 %1
  %3 = exp %2
  %4 = sum over columns of %3
  %5 = div %3 %4
  store 1 [100 1] = %5
  store 1 [100 1] = %3
  keep %3 in 1
)");
}

TEST(Nests_SoftmaxOverMiddle, LanesAlongRows) {
  Builder b;
  b.output("y", b.emit("softmax", {b.input("x", {DType::kF32, {4, 9, 100}})}, {{"dim", int64_t{1}}}));
  EXPECT_EQ(nests(b.graph()), R"(forward kernel (div) rows [4 100] columns [9]: f32 -> f32
  lanes along rows, 7 rows a unit
  %0 = load 0 [900 1 100]
  %1 = max over columns of %0
  %2 = sub %0 %1
  %3 = exp %2
  %4 = sum over columns of %3
  %5 = div %3 %4
  store 1 [900 1 100] = %5
  store 1 [900 1 100] = %3
  keep %3 in 1
)");
}

TEST(Nests_LayerNorm, ForwardIsOneSweepOverRows) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {2, 64, 96}}), r = b.input("r", {DType::kF32, {2, 64, 96}}),
          scale = b.input("s", {DType::kF32, {96}}), bias = b.input("b", {DType::kF32, {96}});
  ValueId h = b.add(x, r);
  b.output("h", h);
  auto y = b.emit_all("layer_norm", {h, scale, bias}, {{"axis", int64_t{2}}, {"epsilon", 0.5}});
  b.output("y", y[0]);
  b.output("rstd", y[2]);
  EXPECT_EQ(nests(b.graph()), R"(forward kernel (add) rows [128] columns [96]: f32 f32 f32 f32 -> f32 f32 f32
  42 rows a unit
  %0 = load 0 [96 1]
  %1 = load 1 [96 1]
  %2 = add %0 %1
  %3 = sum over columns of %2
  %4 = constant f32 0.010416666977107525
  %5 = mul %3 %4
  %6 = sub %2 %5
  %7 = mul %6 %6
  %8 = sum over columns of %7
  %9 = mul %8 %4
  %10 = constant f32 0.5
  %11 = add %9 %10
  %12 = sqrt %11
  %13 = constant f32 1
  %14 = div %13 %12
  %15 = mul %6 %14
  %16 = load 2 [0 1]
  %17 = mul %15 %16
  %18 = load 3 [0 1]
  %19 = add %17 %18
  store 4 [96 1] = %2
  store 5 [1 0] = %14
  store 6 [96 1] = %19
  keep %2 in 4
)");
}

TEST(Nests_LayerNormBackward, FoldsScaleAndBiasGradients) {
  Builder b;
  TensorType t{DType::kF32, {256, 96}}, row{DType::kF32, {256, 1}}, column{DType::kF32, {96}};
  ValueId x = b.input("x", t), g = b.input("g", t), scale = b.input("s", column), mean = b.input("m", row),
          rstd = b.input("r", row);
  Attrs attrs{{"axis", int64_t{1}}, {"epsilon", 0.5}};
  std::vector<TensorType> types{t, column, column};
  std::vector<ValueId> inputs{x, scale, scale}, outputs{kNoValue, mean, rstd}, gradients{g, kNoValue, kNoValue};
  auto d = find_op("layer_norm")->gradient({b, attrs, types, inputs, outputs, gradients});
  b.output("dx", d[0]);
  b.output("dscale", d[1]);
  b.output("dbias", d[2]);
  EXPECT_EQ(nests(b.graph()), R"(forward kernel (reduce_sum) rows [256] columns [96]: f32 f32 f32 f32 f32 -> f32 f32 f32
  42 rows a unit
  %0 = load 0 [1 0]
  %1 = load 1 [96 1]
  %2 = load 2 [0 1]
  %3 = mul %1 %2
  %4 = sum over columns of %3
  %5 = constant f32 0.010416666977107525
  %6 = mul %4 %5
  %7 = sub %3 %6
  %8 = load 3 [96 1]
  %9 = load 4 [1 0]
  %10 = sub %8 %9
  %11 = mul %10 %0
  %12 = mul %3 %11
  %13 = sum over columns of %12
  %14 = mul %13 %5
  %15 = mul %11 %14
  %16 = sub %7 %15
  %17 = mul %0 %16
  %18 = mul %1 %11
  store 5 [96 1] = %17
  fold sum 6 [0 1] x 96 of %18
  fold sum 7 [0 1] x 96 of %1
forward kernel (reduce_sum) rows [96] columns [7]: f32 f32 -> f32 f32
  lanes along rows, 2 rows a unit
  %0 = load 0 [1 96]
  %1 = sum over columns of %0
  %2 = load 1 [1 96]
  %3 = sum over columns of %2
  store 2 [1 0] = %1
  store 3 [1 0] = %3
)");
}

// Both halves of a head are made of both, which are read once.
TEST(Nests_Rotary, IsOneNest) {
  Builder b;
  const ValueId cos = b.input("cos", {DType::kF32, {1, 1, 16, 4}}), sin = b.input("sin", {DType::kF32, {1, 1, 16, 4}});
  b.output("y", b.emit("rotary", {b.input("x", {DType::kF32, {2, 3, 16, 8}}), cos, sin}));
  EXPECT_EQ(nests(b.graph()), R"(forward kernel (concat) rows [6 16] columns [4]: f32 f32 f32 -> f32 f32
  96 rows a unit
  %0 = load 0 [128 8 1]
  %1 = load 1 [0 4 1]
  %2 = mul %0 %1
  %3 = load 0 [128 8 1] + 4
  %4 = load 2 [0 4 1]
  %5 = mul %3 %4
  %6 = sub %2 %5
  %7 = mul %3 %1
  %8 = mul %0 %4
  %9 = add %7 %8
  store 3 [128 8 1] = %6
  store 4 [128 8 1] + 4 = %9
)");
}

TEST(Nests_BiasGradient, AloneSumsAlongColumnsOfLanes) {
  Builder b;
  b.output("y", b.reduce_sum(b.input("x", {DType::kF32, {2, 128, 96}}), {0, 1}, false));
  EXPECT_EQ(nests(b.graph()), R"(forward kernel (reduce_sum) rows [96] columns [256]: f32 -> f32
  lanes along rows, 1 rows a unit
  %0 = load 0 [1 96]
  %1 = sum over columns of %0
  store 1 [1 0] = %1
)");
}

// Sums over samples and planes of a quarter of a cache line: lanes run along the channels, which share them.
TEST(Nests_SmallPlanes, SumAlongLanesOfChannels) {
  for (const int64_t side : {2, 3}) {
    Builder b;
    b.output("y", b.reduce_sum(b.input("x", {DType::kF32, {8, 64, side, side}}), {0, 2, 3}, false));
    EXPECT_EQ(nests(b.graph()).find("lanes along rows") != std::string::npos, side == 2) << side;
  }
}

TEST(Nests_Update, JoinsTheSweepThatSumsUpItsGradient) {
  Builder b;
  const TensorType t{DType::kF32, {10, 100}};
  const ValueId p = b.state({.name = "p"}, t), g = b.input("g", t), rate = b.input("rate", {DType::kF32, {}});
  b.context().segment = Segment::kUpdate;
  b.output("norm", b.reduce_sum(b.mul(g, g), {0, 1}, false));
  b.set_next("p", b.emit("opt_sgd", {p, g, rate}));
  EXPECT_EQ(nests(b.graph()), R"(update kernel (opt_sgd) rows [] columns [1000]: f32 f32 f32 -> f32 f32
  1 rows a unit
  %0 = load 0 [1]
  %1 = mul %0 %0
  %2 = sum over columns of %1
  %3 = load 1 [1]
  %4 = load 2 [0]
  %5 = mul %4 %0
  %6 = sub %3 %5
  store 3 [0] = %2
  store 4 [1] = %6
)");
}

// One thread sums up a gradient of this shape; more take the update.
TEST(Nests_Update, StaysDividedWhereTheSumIsNot) {
  Builder b;
  const TensorType t{DType::kF32, {300, 100}};
  const ValueId p = b.state({.name = "p"}, t), g = b.input("g", t), rate = b.input("rate", {DType::kF32, {}});
  b.context().segment = Segment::kUpdate;
  b.output("norm", b.reduce_sum(b.mul(g, g), {0, 1}, false));
  b.set_next("p", b.emit("opt_sgd", {p, g, rate}));
  const std::string text = nests(b.graph());
  EXPECT_NE(text.find("update kernel (reduce_sum) rows [] columns [30000]: f32 -> f32\n"), std::string::npos) << text;
  EXPECT_NE(text.find("update kernel (opt_sgd) rows [8] columns [4096]"), std::string::npos) << text;
}

}  // namespace
}  // namespace partita
