#include "passes/recognize/recognize_norm.h"

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

constexpr double kEpsilon = 1e-5;

ValueId parameter(Builder& b, std::string name, Shape shape) {
  return b.state({.name = std::move(name), .kind = StateKind::kParameter}, {DType::kF64, std::move(shape)});
}

enum class Root { kSqrtDivide, kSqrtReciprocal, kRsqrt, kPow };

// x / sqrt(mean(square) + epsilon).
ValueId divided(Builder& b, ValueId x, ValueId square, std::vector<int64_t> dims, Root root,
                double epsilon = kEpsilon) {
  ValueId shifted = b.add_scalar(b.mean(square, std::move(dims), true), epsilon);
  switch (root) {
    case Root::kSqrtDivide:
      return b.div(x, b.emit("sqrt", {shifted}));
    case Root::kSqrtReciprocal:
      return b.mul(x, b.div(b.scalar(DType::kF64, 1), b.emit("sqrt", {shifted})));
    case Root::kRsqrt:
      return b.mul(x, b.emit("rsqrt", {shifted}));
    case Root::kPow:
      return b.mul(x, b.emit("pow", {shifted, b.scalar(DType::kF64, -0.5)}));
  }
  return kNoValue;
}

TEST(Norm_LayerNorm, WaysToDivideAndSquare) {
  for (Root root : {Root::kSqrtDivide, Root::kSqrtReciprocal, Root::kRsqrt, Root::kPow}) {
    for (bool pow : {false, true}) {
      Builder b;
      ValueId x = f64_input(b, "x", {2, 3, 8}), w = parameter(b, "w", {8}), bias = parameter(b, "b", {8});
      ValueId c = b.sub(x, b.mean(x, {2}, true)),
              square = pow ? b.emit("pow", {c, b.scalar(DType::kF64, 2)}) : b.mul(c, c);
      b.output("y", b.add(b.mul(divided(b, c, square, {2}, root), w), bias));
      Graph g = recognised(recognize_norm, std::move(b));
      EXPECT_EQ(count(g, "layer_norm"), 1);
      EXPECT_EQ(g.nodes.size(), 1u);
      EXPECT_EQ(the(g, "layer_norm").attrs.i("axis"), 2);
      EXPECT_DOUBLE_EQ(the(g, "layer_norm").attrs.f("epsilon"), kEpsilon);
    }
  }
}

TEST(Norm_LayerNorm, SeveralDimensions) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 3, 4}), w = parameter(b, "w", {3, 4}), bias = parameter(b, "b", {1, 3, 4});
  ValueId c = b.sub(x, b.mean(x, {1, 2}, true));
  b.output("y", b.add(bias, b.mul(w, divided(b, c, b.mul(c, c), {1, 2}, Root::kSqrtDivide))));
  Graph g = recognised(recognize_norm, std::move(b));
  EXPECT_EQ(count(g, "layer_norm"), 1);
  EXPECT_EQ(the(g, "layer_norm").attrs.i("axis"), 1);
}

TEST(Norm_LayerNorm, WithoutScaleOrBias) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 8}), other = f64_input(b, "o", {2, 8});
  ValueId c = b.sub(x, b.mean(x, {1}, true));
  b.output("y", b.add(divided(b, c, b.mul(c, c), {1}, Root::kSqrtDivide), other));  // a residual is no bias
  Graph g = recognised(recognize_norm, std::move(b));
  EXPECT_EQ(count(g, "layer_norm"), 1);
  EXPECT_EQ(count(g, "add"), 1);
}

TEST(Norm_RmsNorm, LlamaAndOtherOrders) {
  for (Root root : {Root::kSqrtDivide, Root::kSqrtReciprocal, Root::kRsqrt}) {
    for (bool weight_first : {false, true}) {
      Builder b;
      ValueId x = f64_input(b, "x", {2, 3, 8}), w = parameter(b, "w", {8}), y = divided(b, x, b.mul(x, x), {2}, root);
      b.output("y", weight_first ? b.mul(w, y) : b.mul(y, w));
      Graph g = recognised(recognize_norm, std::move(b));
      EXPECT_EQ(count(g, "rms_norm"), 1);
      EXPECT_EQ(g.nodes.size(), 1u);
    }
  }
}

TEST(Norm_RmsNorm, ShiftedWeight) {
  Builder b;
  ValueId x = f64_input(b, "x", {3, 8}), w = parameter(b, "w", {8});
  b.output("y", b.mul(divided(b, x, b.mul(x, x), {1}, Root::kRsqrt), b.add_scalar(w, 1)));
  Graph g = recognised(recognize_norm, std::move(b));
  EXPECT_EQ(count(g, "rms_norm"), 1);
  EXPECT_EQ(g.nodes.size(), 2u);
}

TEST(Norm_RmsNorm, InHalfPrecision) {
  Builder b;
  ValueId x = b.input("x", {DType::kBF16, {3, 8}}),
          w = b.state({.name = "w", .kind = StateKind::kParameter}, {DType::kBF16, {8}});
  ValueId wide = b.cast(x, DType::kF32), square = b.mul(wide, wide);
  ValueId y = b.mul(wide, b.emit("rsqrt", {b.add_scalar(b.mean(square, {1}, true), 1e-6)}));
  b.output("y", b.mul(w, b.cast(y, DType::kBF16)));
  EXPECT_EQ(count(recognised(recognize_norm, std::move(b), 1e-2), "rms_norm"), 1);
}

Graph not_quite(const std::function<ValueId(Builder&, ValueId x, ValueId w)>& spell) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 8, 8}), w = parameter(b, "w", {8});
  b.output("y", spell(b, x, w));
  return recognised(recognize_norm, std::move(b));
}

TEST(Norm_NotRecognised, WrongDivisorAxisOrOperand) {
  Graph other_axis = not_quite(
      [](Builder& b, ValueId x, ValueId w) { return b.mul(divided(b, x, b.mul(x, x), {1}, Root::kRsqrt), w); });
  EXPECT_EQ(count(other_axis, "rms_norm"), 0);
  Graph unbiased = not_quite([](Builder& b, ValueId x, ValueId w) {
    ValueId c = b.sub(x, b.mean(x, {2}, true)), variance = b.scale(b.reduce_sum(b.mul(c, c), {2}, true), 1.0 / 7);
    return b.mul(b.div(c, b.emit("sqrt", {b.add_scalar(variance, kEpsilon)})), w);
  });
  EXPECT_EQ(count(unbiased, "layer_norm"), 0);
  Graph epsilon_outside = not_quite([](Builder& b, ValueId x, ValueId w) {
    ValueId c = b.sub(x, b.mean(x, {2}, true));
    return b.mul(b.div(c, b.add_scalar(b.emit("sqrt", {b.mean(b.mul(c, c), {2}, true)}), kEpsilon)), w);
  });
  EXPECT_EQ(count(epsilon_outside, "layer_norm"), 0);
  Graph other_value = not_quite([](Builder& b, ValueId x, ValueId w) {
    return b.mul(divided(b, b.emit("tanh", {x}), b.mul(x, x), {2}, Root::kRsqrt), w);
  });
  EXPECT_EQ(count(other_value, "rms_norm"), 0);
}

TEST(Norm_NotRecognised, OtherReader) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 8}), w = parameter(b, "w", {8}), y = divided(b, x, b.mul(x, x), {1}, Root::kRsqrt);
  b.output("y", b.mul(y, w));
  b.output("rstd", b.graph().nodes[b.graph().nodes.size() - 3].outputs[0]);
  EXPECT_EQ(count(recognised(recognize_norm, std::move(b)), "rms_norm"), 0);
}

TEST(Norm_LayerNorm, ScaleThatVariesByRowStaysOutside) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 3, 8}), w = f64_input(b, "w", {2, 1, 8}), c = b.sub(x, b.mean(x, {2}, true));
  b.output("y", b.mul(divided(b, c, b.mul(c, c), {2}, Root::kSqrtDivide), w));
  Graph g = recognised(recognize_norm, std::move(b));
  EXPECT_EQ(count(g, "layer_norm"), 1);
  EXPECT_EQ(count(g, "mul"), 1);
}

}  // namespace
}  // namespace partita
