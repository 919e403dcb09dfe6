// Contractions and composites: values, edge cases, formulas, errors. Gradients and splits are in op_test.cc.
#include <cmath>
#include <limits>
#include <random>

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ints = std::vector<int64_t>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor tensor(Shape shape, std::vector<double> values, DType type = DType::kF64) {
  return {{type, std::move(shape)}, std::move(values), {}};
}
Tensor integers(Shape shape, std::vector<int64_t> values, DType type = DType::kI64) {
  return {{type, std::move(shape)}, {}, std::move(values)};
}
Tensor random(Shape shape, int seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  Tensor t = Tensor::zeros({DType::kF64, std::move(shape)});
  for (double& x : t.f) x = normal(rng);
  return t;
}

std::vector<Tensor> run(std::string_view op, const Attrs& attrs, const std::vector<const Tensor*>& inputs) {
  return evaluate_op(*find_op(op), attrs, inputs);
}

// The op's expansion instead of its reference.
std::vector<Tensor> run_expanded(std::string_view op, const Attrs& attrs, const std::vector<const Tensor*>& inputs) {
  OpDef expanding = *find_op(op);
  expanding.evaluate = nullptr;
  return evaluate_op(expanding, attrs, inputs);
}

void expect_near(const Tensor& found, const Tensor& expected, double tolerance = 1e-12) {
  ASSERT_EQ(found.type, expected.type);
  ASSERT_EQ(found.f.size(), expected.f.size());
  for (size_t k = 0; k < found.f.size(); ++k) {
    if (std::isinf(expected.f[k])) {
      EXPECT_EQ(found.f[k], expected.f[k]) << "element " << k;
    } else {
      EXPECT_NEAR(found.f[k], expected.f[k], tolerance) << "element " << k;
    }
  }
}

std::string formula(std::string_view op, const Attrs& attrs, const std::vector<TensorType>& types) {
  OpView use{attrs, types};
  auto inferred = infer_types(*find_op(op), use);
  return inferred.ok() ? to_string(bound_formula(*find_op(op), use)) : std::string(inferred.status().message());
}

std::string fault(std::string_view op, const Attrs& attrs, const std::vector<TensorType>& types) {
  auto inferred = infer_types(*find_op(op), {attrs, types});
  return inferred.ok()                                ? "no fault"
         : absl::IsInvalidArgument(inferred.status()) ? std::string(inferred.status().message())
                                                      : "another code";
}

TensorType f32(Shape shape) { return {DType::kF32, std::move(shape)}; }

TEST(MatMulGradient, FoldsTheBatchOfASharedMatrix) {
  Builder b;
  ValueId x = b.input("x", f32({8, 16, 4})), w = b.input("w", f32({1, 4, 6})), y = b.matmul(x, w),
          g = b.input("g", b.type(y));
  std::vector<TensorType> types{b.type(x), b.type(w)};
  std::vector<ValueId> in{x, w}, out{y}, gradients{g};
  Attrs none;
  auto grads = find_op("matmul")->gradient({b, none, types, in, out, gradients});
  EXPECT_EQ(b.shape(grads[0]), (Shape{8, 16, 4}));
  EXPECT_EQ(b.shape(grads[1]), (Shape{1, 4, 6}));
  const Node& product = *b.graph().producer(grads[1]);
  EXPECT_EQ(product.op->name, "matmul");  // one product: no sum over a [8,4,6]
  EXPECT_EQ(b.shape(product.inputs[0]), (Shape{1, 128, 4}));
}

TEST(Conv, HandComputed) {
  Tensor x = tensor({1, 1, 4}, {1, 2, 3, 5}), w = tensor({1, 1, 3}, {1, 0, -2});
  EXPECT_THAT(run("conv", {}, {&x, &w})[0].f, ElementsAre(-5, -8));
  Attrs attrs{{"strides", Ints{2}}, {"pads_low", Ints{1}}, {"pads_high", Ints{2}}};
  EXPECT_THAT(run("conv", attrs, {&x, &w})[0].f, ElementsAre(-4, -8, 5));  // [0 1 2] [2 3 5] [5 0 0]
  EXPECT_THAT(run("conv", {{"dilations", Ints{1}}, {"pads_high", Ints{1}}}, {&x, &w})[0].f, ElementsAre(-5, -8, 3));
  // Two groups of one channel with two outputs each.
  Tensor x2 = tensor({1, 2, 2}, {1, 2, 10, 20}), w2 = tensor({4, 1, 1}, {1, 2, 3, 4});
  EXPECT_THAT(run("conv", {{"groups", int64_t{2}}}, {&x2, &w2})[0].f, ElementsAre(1, 2, 2, 4, 30, 60, 40, 80));
  // [[1 2 3][4 5 6]] by [[1 2][3 4]].
  Tensor x3 = tensor({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), w3 = tensor({1, 1, 2, 2}, {1, 2, 3, 4});
  EXPECT_THAT(run("conv", {}, {&x3, &w3})[0].f, ElementsAre(37, 47));
}

TEST(ConvGradData, IsTransposedConvolution) {
  // torch.nn.functional.conv_transpose1d([1, 2], [1, 10, 100], stride=2) and with output_padding=1.
  Tensor g = tensor({1, 1, 2}, {1, 2}), w = tensor({1, 1, 3}, {1, 10, 100});
  EXPECT_THAT(run("conv_grad_data", {{"strides", Ints{2}}, {"input_shape", Ints{1, 1, 5}}}, {&g, &w})[0].f,
              ElementsAre(1, 10, 102, 20, 200));
  EXPECT_THAT(run("conv_grad_data", {{"strides", Ints{2}}, {"input_shape", Ints{1, 1, 6}}}, {&g, &w})[0].f,
              ElementsAre(1, 10, 102, 20, 200, 0));
}

TEST(Conv, Formulas) {
  EXPECT_EQ(formula("conv", {}, {f32({2, 4, 8, 8}), f32({6, 4, 3, 3})}),
            "~ n c+ i0^ i1^, ~ o c k0^ k1^ -> n o h0^ h1^");
  EXPECT_EQ(formula("conv", {{"groups", int64_t{2}}}, {f32({2, 4, 8}), f32({6, 2, 3})}),
            "~ n (g c+) i0^, ~ (g o) c k0^ -> n (g o) h0^");
  EXPECT_EQ(formula("conv", {}, {f32({2, 4, 8, 7}), f32({6, 4, 1, 1})}), "~ n c+ h0 h1, ~ o c * * -> n o h0 h1");
  Attrs patches{{"strides", Ints{4, 4}}};
  EXPECT_EQ(formula("conv", patches, {f32({2, 3, 8, 8}), f32({6, 3, 4, 4})}),
            "~ n c+ (h0 k0^) (h1 k1^), ~ o c k0 k1 -> n o h0 h1");
  patches.set("input_shape", Ints{2, 3, 8, 8});
  EXPECT_EQ(formula("conv_grad_data", patches, {f32({2, 6, 2, 2}), f32({6, 3, 4, 4})}),
            "~ n o+ h0 h1, ~ o c k0^ k1^ -> n c (h0 k0) (h1 k1)");
  EXPECT_EQ(formula("conv_grad_weight", {{"weight_shape", Ints{6, 4, 1}}}, {f32({2, 6, 8}), f32({2, 4, 8})}),
            "~ n+ o h0+, ~ n c h0 -> o c *");
  EXPECT_EQ(formula("conv_grad_weight", {{"weight_shape", Ints{6, 4, 3}}}, {f32({2, 6, 6}), f32({2, 4, 8})}),
            "~ n+ o h0^, ~ n c i0^ -> o c k0^");
}

TEST(Conv, LocalizesGroupsAndShapes) {
  const OpDef& op = *find_op("conv_grad_data");
  Attrs attrs{{"groups", int64_t{4}}, {"input_shape", Ints{8, 12, 5}}};
  std::vector<Shape> in{{8, 4, 3}, {4, 3, 3}}, out{{8, 6, 5}};  // two of the four groups
  Attrs local = localized_attrs(op, attrs, in, out);
  EXPECT_EQ(local.i("groups"), 2);
  EXPECT_EQ(local.ints("input_shape"), (Ints{8, 6, 5}));
}

TEST(Conv, HostileAttributes) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  TensorType x = f32({2, 4, 8}), w = f32({6, 4, 3});
  EXPECT_EQ(fault("conv", {{"strides", Ints{0}}}, {x, w}), "expected strides of at least 1 and below 2^31, found 0");
  EXPECT_EQ(fault("conv", {{"pads_low", Ints{-1}}}, {x, w}), "expected pads of at least 0 and below 2^31, found -1");
  EXPECT_EQ(fault("conv", {{"dilations", Ints{kHuge}}}, {x, w}),
            "expected dilations of at least 1 and below 2^31, found 9223372036854775807");
  EXPECT_EQ(fault("conv", {{"strides", Ints{1, 1}}}, {x, w}), "expected 1 strides, found 2");
  EXPECT_EQ(fault("conv", {{"dilations", Ints{4}}}, {x, w}),
            "spatial dimension 0: a window of 9 elements does not fit into 8 with padding 0 and 0");
  EXPECT_EQ(fault("conv", {{"groups", int64_t{0}}}, {x, w}),
            "channels of input [2,4,8] and weight [6,4,3] do not fit 0 groups: expected a weight [outputs, inputs / "
            "groups, kernel…]");
  EXPECT_THAT(fault("conv", {{"groups", kHuge}}, {x, w}), HasSubstr("do not fit"));
  EXPECT_THAT(fault("conv", {}, {f32({2, 4}), f32({6, 4})}),
              HasSubstr("expected input and weight of one rank of 3 to 5"));
  EXPECT_THAT(fault("conv", {}, {x, f32({6, 4, 0})}), HasSubstr("expected kernel sizes of at least 1"));
  EXPECT_THAT(fault("conv", {{"pads_low", Ints{(int64_t{1} << 31) - 1, 0}}},
                    {f32({1 << 20, 1, 1, 1}), f32({1 << 20, 1, 1, 1})}),
              HasSubstr("too large"));
  EXPECT_EQ(fault("conv", {{"pads_low", Ints{3}}}, {f32({2, 4, 0}), w}),
            "expected spatial dimensions of 1 to 2^31 - 1 elements, found [2,4,0]");
  EXPECT_EQ(fault("conv_grad_data", {{"input_shape", Ints{2, 4, 9}}}, {f32({2, 6, 6}), w}),
            "the gradient for input [2,4,9]: expected [2,6,7], found [2,6,6]");
  EXPECT_EQ(fault("conv_grad_data", {{"input_shape", Ints{2, -4, 9}}}, {f32({2, 6, 6}), w}),
            "input_shape [2,-4,9] is negative or too large");
  EXPECT_THAT(fault("conv_grad_data", {{"input_shape", Ints{}}}, {f32({2, 6, 6}), w}), HasSubstr("rank"));
  EXPECT_THAT(fault("conv_grad_weight", {{"weight_shape", Ints{6}}}, {f32({2, 6, 6}), x}), HasSubstr("rank"));
}

TEST(MaxPool, ValuesAndPositions) {
  Tensor x = tensor({1, 1, 2, 4}, {1, 5, 2, 0, 7, 3, 2, 9});
  Attrs attrs{{"kernel", Ints{2, 2}}, {"strides", Ints{1, 2}}, {"pads_low", Ints{1, 0}}};
  auto out = run("max_pool", attrs, {&x});
  EXPECT_THAT(out[0].f, ElementsAre(5, 2, 7, 9));
  EXPECT_THAT(out[1].i, ElementsAre(1, 2, 4, 7));
  Tensor ties = tensor({1, 1, 3}, {4, 4, std::nan("")});
  out = run("max_pool", {{"kernel", Ints{2}}}, {&ties});
  EXPECT_EQ(out[1].i[0], 0);
  EXPECT_TRUE(std::isnan(out[0].f[1]));
}

TEST(AvgPool, PaddingCountsOrNot) {
  Tensor x = tensor({1, 1, 3}, {2, 4, 6});
  Attrs attrs{{"kernel", Ints{2}}, {"pads_low", Ints{1}}, {"strides", Ints{2}}};
  EXPECT_THAT(run("avg_pool", attrs, {&x})[0].f, ElementsAre(2, 5));
  attrs.set("count_include_pad", int64_t{1});
  EXPECT_THAT(run("avg_pool", attrs, {&x})[0].f, ElementsAre(1, 5));
}

TEST(Pools, FormulasAndFaults) {
  Attrs tiles{{"kernel", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  EXPECT_EQ(formula("avg_pool", tiles, {f32({2, 3, 4, 6})}), "~ n c (h0 k0^) (h1 k1^) -> n c h0 h1");
  EXPECT_EQ(formula("max_pool", tiles, {f32({2, 3, 4, 6})}), "n c i0^ i1^ -> n c h0^ h1^, n c h0 h1");
  Attrs padded{{"kernel", Ints{2}}, {"pads_low", Ints{2}}};
  EXPECT_EQ(fault("max_pool", padded, {f32({2, 3, 4})}),
            "spatial dimension 0: padding 2 and 0 around 4 elements leaves windows of 2 (dilation 1) without any "
            "element; pad less");
  EXPECT_THAT(fault("avg_pool", padded, {f32({2, 3, 4})}), HasSubstr("pad less"));
  padded.set("count_include_pad", int64_t{1});
  EXPECT_EQ(fault("avg_pool", padded, {f32({2, 3, 4})}), "no fault");
  Attrs dilated{{"kernel", Ints{2}}, {"pads_low", Ints{1}}, {"pads_high", Ints{1}}, {"dilations", Ints{2}}};
  EXPECT_THAT(fault("max_pool", dilated, {f32({2, 3, 1})}), HasSubstr("pad less"));
  EXPECT_THAT(fault("max_pool", {{"kernel", Ints{1, 1}}}, {f32({1, 1, 1 << 16, 1 << 16})}),
              HasSubstr("32-bit positions"));
  EXPECT_THAT(fault("max_pool", {{"kernel", Ints{}}}, {f32({1, 1})}), HasSubstr("1 to 3 spatial dimensions"));
  EXPECT_THAT(fault("max_pool_grad", {{"input_shape", Ints{2, 3, -1}}, {"kernel", Ints{2}}},
                    {f32({2, 3, 4}), {DType::kI32, {2, 3, 4}}}),
              HasSubstr("cannot be that of a pool"));
}

TEST(Softmax, ValuesAndRowsOfMinusInfinity) {
  Tensor x = tensor({2, 2}, {1000, 1000 + std::log(3), -kInfinity, -kInfinity});
  auto y = run("softmax", {{"dim", int64_t{1}}}, {&x})[0];
  EXPECT_NEAR(y.f[0], 0.25, 1e-12);
  EXPECT_NEAR(y.f[1], 0.75, 1e-12);
  EXPECT_TRUE(std::isnan(y.f[2]));  // as in ONNX
  EXPECT_NEAR(run("log_softmax", {{"dim", int64_t{1}}}, {&x})[0].f[0], std::log(0.25), 1e-12);
}

TEST(Softmax, GradientPassesWhereIsNan) {
  // Where(IsNaN(p), 0, p), as exporters write it: the gradient of a row without keys is zero, not NaN.
  Builder b;
  ValueId x = b.input("x", {DType::kF64, {2, 3}}), weights = b.input("weights", {DType::kF64, {2, 3}});
  ValueId p = b.emit("softmax", {x}, {{"dim", int64_t{1}}}), zero = b.scalar(DType::kF64, 0);
  ValueId g = b.select(b.emit("is_nan", {p}), zero, weights);
  std::vector<TensorType> types{b.type(x)};
  std::vector<ValueId> in{x}, out{p}, gradients{g};
  Attrs attrs{{"dim", int64_t{1}}};
  ValueId dx = find_op("softmax")->gradient({b, attrs, types, in, out, gradients})[0];
  Tensor values = tensor({2, 3}, {0, 0, -kInfinity, -kInfinity, -kInfinity, -kInfinity}),
         w = tensor({2, 3}, {1, 3, 5, 1, 2, 3});
  EXPECT_THAT(evaluate_graph(b.graph(), {{x, values}, {weights, w}}, {dx})[0].f, ElementsAre(-0.5, 0.5, 0, 0, 0, 0));
}

TEST(Norms, HandComputed) {
  Tensor x = tensor({2, 2}, {1, 3, 10, 10}), scale = tensor({2}, {2, 3}), bias = tensor({2}, {0.5, -0.5});
  Attrs attrs{{"axis", int64_t{1}}, {"epsilon", 0.0625}};
  auto out = run("layer_norm", attrs, {&x, &scale, &bias});
  double rstd = 1 / std::sqrt(1.0625);
  expect_near(out[0], tensor({2, 2}, {-2 * rstd + 0.5, 3 * rstd - 0.5, 0.5, -0.5}));
  expect_near(out[1], tensor({2, 1}, {2, 10}));
  expect_near(out[2], tensor({2, 1}, {rstd, 4}));
  out = run("rms_norm", attrs, {&x, &scale});
  expect_near(out[1], tensor({2, 1}, {1 / std::sqrt(5.0625), 1 / std::sqrt(100.0625)}));
  EXPECT_NEAR(out[0].f[1], 9 / std::sqrt(5.0625), 1e-12);
  out = run("batch_norm", {{"epsilon", 0.0}}, {&x, &scale, &bias});
  expect_near(out[0], tensor({2, 2}, {-1.5, -3.5, 2.5, 2.5}));
  expect_near(out[1], tensor({2}, {5.5, 6.5}));
  expect_near(out[2], tensor({2}, {20.25, 12.25}));
}

TEST(Norms, BatchNormInGroupsIsThatOfEachGroup) {
  Tensor x = random({6, 2, 3}, 1), scale = random({2}, 2), bias = random({2}, 3);
  auto whole = run("batch_norm", {{"epsilon", 1e-3}, {"groups", int64_t{3}}}, {&x, &scale, &bias});
  ASSERT_EQ(whole[1].type.shape, (Shape{3, 2}));
  for (int64_t g = 0; g < 3; ++g) {
    auto part = [&](const Tensor& t, Shape shape) {
      int64_t n = elements(shape);
      return tensor(std::move(shape), std::vector<double>(t.f.begin() + g * n, t.f.begin() + (g + 1) * n));
    };
    Tensor mine = part(x, {2, 2, 3});
    auto alone = run("batch_norm", {{"epsilon", 1e-3}}, {&mine, &scale, &bias});
    expect_near(part(whole[0], {2, 2, 3}), alone[0]);
    expect_near(part(whole[1], {2}), alone[1]);
    expect_near(part(whole[2], {2}), alone[2]);
  }
}

TEST(Norms, HalfPrecisionKeepsStatisticsWide) {
  Attrs attrs{{"axis", int64_t{1}}, {"epsilon", 1e-5}};
  TensorType x{DType::kBF16, {4, 8}}, narrow{DType::kBF16, {8}}, wide{DType::kF32, {8}};
  std::vector<TensorType> types{x, wide, narrow};
  auto out = *infer_types(*find_op("layer_norm"), {attrs, types});
  EXPECT_EQ(out[0], x);
  EXPECT_EQ(out[1], (TensorType{DType::kF32, {4, 1}}));
  Builder b;
  ValueId v = b.input("x", x), s = b.input("scale", narrow);
  std::vector<TensorType> both{x, narrow};
  std::vector<ValueId> in{v, s};
  auto expanded = find_op("rms_norm")->expand({b, attrs, both, in, {}, {}});
  EXPECT_EQ(b.type(expanded[0]), x);
  EXPECT_EQ(b.type(expanded[1]), (TensorType{DType::kF32, {4, 1}}));
}

TEST(Norms, FormulasAndFaults) {
  Attrs attrs{{"axis", int64_t{1}}, {"epsilon", 1e-5}};
  EXPECT_EQ(formula("layer_norm", attrs, {f32({2, 3, 4}), f32({3, 4}), f32({3, 4})}),
            "a b^ c^, b c, b c -> a b c, a * *, a * *");
  EXPECT_EQ(formula("layer_norm", attrs, {f32({2, 3, 4}), f32({3, 4}), {}}), "a b^ c^, b c -> a b c, a * *, a * *");
  EXPECT_EQ(formula("batch_norm", {{"epsilon", 0.0}}, {f32({2, 3, 4}), f32({3}), f32({3})}),
            "n^ c i0^, c, c -> n c i0, c, c");
  EXPECT_EQ(formula("batch_norm", {{"epsilon", 0.0}, {"groups", int64_t{2}}}, {f32({6, 3, 4}), f32({3}), f32({3})}),
            "(g n^) c i0^, c, c -> (g n) c i0, g c, g c");
  EXPECT_EQ(formula("softmax", {{"dim", int64_t{1}}}, {f32({2, 3, 4})}), "a b^ c -> a b c");
  EXPECT_EQ(fault("layer_norm", attrs, {f32({2, 3, 4}), f32({4})}),
            "expected scale f32[3,4] (the dimensions of f32[2,3,4] from 1 on), found f32[4]");
  EXPECT_EQ(fault("rms_norm", {{"axis", int64_t{-1}}, {"epsilon", 0.0}}, {f32({2}), f32({2})}),
            "expected a float tensor that has dimension -1 (axis), found f32[2]");
  EXPECT_EQ(fault("layer_norm", {{"axis", int64_t{0}}, {"epsilon", -1.0}}, {f32({2}), f32({2})}),
            "expected an epsilon of at least 0, found -1");
  EXPECT_EQ(fault("softmax", {{"dim", int64_t{3}}}, {f32({2, 3})}),
            "expected a float tensor that has dimension 3, found f32[2,3]");
  EXPECT_EQ(fault("batch_norm", {{"epsilon", 0.0}, {"groups", int64_t{4}}}, {f32({6, 3}), f32({3}), f32({3})}),
            "expected groups that divide 6 samples, found 4");
  EXPECT_THAT(fault("batch_norm", {{"epsilon", 0.0}}, {f32({3}), f32({3}), f32({3})}),
              HasSubstr("expected a float tensor [n, channels, …]"));
}

TEST(CrossEntropy, StableAndZeroOutside) {
  Tensor logits = tensor({5, 2}, {1e4, 1e4 + std::log(3), 0, 0, -kInfinity, -kInfinity, -kInfinity, 2, -1e300, 0});
  Tensor labels = integers({5}, {0, -100, 2, 1, 1});
  auto out = run("cross_entropy", {}, {&logits, &labels});
  expect_near(out[0], tensor({5}, {std::log(4), 0, 0, 0, 0}), 1e-11);
  expect_near(out[1], tensor({5}, {1e4 + std::log(4), std::log(2), -kInfinity, 2, 0}), 1e-11);
  Tensor g = tensor({5}, {2, 3, 5, 7, 11});
  auto grad = run("cross_entropy_grad", {}, {&g, &logits, &labels, &out[1]})[0];
  expect_near(grad, tensor({5, 2}, {-1.5, 1.5, 0, 0, 0, 0, 0, 0, 0, 0}), 1e-11);
}

TEST(CrossEntropy, FaultsAndTypes) {
  EXPECT_EQ(fault("cross_entropy", {}, {f32({2, 3}), {DType::kI64, {3}}}),
            "expected integer labels, one for each row of logits f32[2,3], found i64[3]");
  EXPECT_EQ(fault("cross_entropy", {}, {f32({}), {DType::kI64, {}}}),
            "expected float logits [..., classes], found f32[]");
  Attrs none;
  std::vector<TensorType> types{{DType::kF16, {2, 3}}, {DType::kI64, {2}}};
  EXPECT_EQ((*infer_types(*find_op("cross_entropy"), {none, types}))[0], f32({2}));
  EXPECT_EQ(formula("cross_entropy_grad", {}, {f32({2}), f32({2, 3}), {DType::kI32, {2}}, f32({2})}),
            "~ a, a v^, a, a -> a v");
}

struct AttentionCase {
  std::string name;
  int64_t kv, s, t;
  bool causal;
  Tensor mask;
};

std::vector<AttentionCase> attention_cases() {
  Tensor rows = integers({2, 1, 3, 5}, std::vector<int64_t>(30, 1), DType::kBool);
  for (int j = 0; j < 5; ++j) rows.i[j] = 0, rows.i[20 + j] = j == 2;  // a row without keys; a row with one
  Tensor bias = random({1, 4, 1, 5}, 9);
  bias.f[3] = -kInfinity;
  Tensor padding = bias;  // as exporters hide keys, all of them of some queries
  std::fill(padding.f.begin(), padding.f.begin() + static_cast<std::ptrdiff_t>(padding.f.size() / 2), -3.4e38);
  return {{"Plain", 4, 3, 5, false, {}},    {"Grouped", 2, 3, 5, false, {}},
          {"OneHead", 1, 3, 5, true, {}},   {"CausalMoreQueries", 2, 6, 5, true, {}},
          {"Masked", 2, 3, 5, false, rows}, {"MaskedCausal", 2, 3, 5, true, rows},
          {"Bias", 2, 3, 5, false, bias},   {"Padding", 2, 3, 5, false, padding}};
}

TEST(Attention, ExpansionEqualsReference) {
  for (const AttentionCase& c : attention_cases()) {
    SCOPED_TRACE(c.name);
    Tensor q = random({2, 4, c.s, 3}, 1), k = random({2, c.kv, c.t, 3}, 2), v = random({2, c.kv, c.t, 2}, 3),
           g = random({2, 4, c.s, 2}, 4);
    const Tensor* mask = c.mask.type.dtype == DType::kInvalid ? nullptr : &c.mask;
    Attrs attrs{{"scale", 0.6}, {"causal", int64_t{c.causal}}};
    auto reference = run("attention", attrs, {&q, &k, &v, mask}),
         expanded = run_expanded("attention", attrs, {&q, &k, &v, mask});
    expect_near(expanded[0], reference[0]);
    expect_near(expanded[1], reference[1], 1e-6);  // lse is f32
    std::vector<const Tensor*> in{&g, &q, &k, &v, mask, &reference[0], &reference[1]};
    auto grads = run("attention_grad", attrs, in), math = run_expanded("attention_grad", attrs, in);
    for (int d = 0; d < 3; ++d) expect_near(math[d], grads[d]);
  }
}

TEST(Attention, RowsWithoutKeysAreZero) {
  Tensor q = random({1, 1, 4, 2}, 1), k = random({1, 1, 2, 2}, 2), v = random({1, 1, 2, 2}, 3);
  Attrs attrs{{"scale", 1.0}, {"causal", int64_t{1}}};  // queries 0 and 1 come before every key; query 2 sees key 0
  auto out = run("attention", attrs, {&q, &k, &v});
  for (int c = 0; c < 4; ++c) EXPECT_EQ(out[0].f[c], 0);
  EXPECT_EQ(out[0].f[4], v.f[0]);
  EXPECT_EQ(out[1].f[0], -kInfinity);
}

// As kernels pass over them, and over the blocks that they fill.
TEST(Attention, WhatHiddenKeysHoldDoesNotMatter) {
  Tensor q = random({1, 1, 3, 2}, 1), k = random({1, 1, 3, 2}, 2), v = random({1, 1, 3, 2}, 3);
  Attrs attrs{{"scale", 1.0}, {"causal", int64_t{1}}};
  const auto before = run("attention", attrs, {&q, &k, &v});
  k.f[5] = v.f[5] = std::numeric_limits<double>::quiet_NaN();
  const auto now = run("attention", attrs, {&q, &k, &v});
  for (int c = 0; c < 4; ++c) EXPECT_EQ(now[0].f[c], before[0].f[c]);
  EXPECT_TRUE(std::isnan(now[0].f[4]));
}

TEST(Attention, FormulasAndFaults) {
  TensorType q = f32({2, 4, 3, 8}), k = f32({2, 2, 5, 8}), v = f32({2, 2, 5, 6}), out = f32({2, 4, 3, 6}),
             lse = f32({2, 4, 3});
  Attrs attrs{{"scale", 1.0}}, causal{{"scale", 1.0}, {"causal", int64_t{1}}};
  EXPECT_EQ(formula("attention", attrs, {q, k, v}), "b (kv g) s d^, b kv t^ d, b kv t e -> b (kv g) s e, b (kv g) s");
  EXPECT_EQ(formula("attention", causal, {q, k, v, {DType::kBool, {2, 1, 1, 5}}}),
            "b (kv g) s^ d^, b kv t^ d, b kv t e, b * * t -> b (kv g) s e, b (kv g) s");
  EXPECT_EQ(formula("attention_grad", attrs, {out, q, k, v, f32({1, 4, 3, 1}), out, lse}),
            "~ b (kv g+) s+ e^, b (kv g) s d^, b kv t+ d, b kv t e, * (kv g) s *, b (kv g) s e, b (kv g) s -> b (kv g) "
            "s d, b kv t d, b kv t e");
  EXPECT_THAT(fault("attention", attrs, {q, f32({2, 3, 5, 8}), f32({2, 3, 5, 6})}),
              HasSubstr("a multiple of the key heads"));
  EXPECT_THAT(fault("attention", attrs, {q, f32({2, 0, 5, 8}), f32({2, 0, 5, 6})}),
              HasSubstr("a multiple of the key heads"));
  EXPECT_THAT(fault("attention", attrs, {q, k, v, f32({3, 5})}),
              HasSubstr("that broadcasts to [2,4,3,5], found f32[3,5]"));
  EXPECT_THAT(fault("attention", {{"scale", kInfinity}}, {q, k, v}), HasSubstr("a finite scale"));
  EXPECT_THAT(fault("attention", attrs, {q, f32({2, 2, 5, 7}), v}), HasSubstr("expected q [b,h,s,d]"));
  constexpr int64_t kLong = int64_t{1} << 30;
  EXPECT_THAT(fault("attention", attrs, {f32({1, 1, kLong, 1}), f32({1, 1, kLong, 1}), f32({1, 1, kLong, 1})}),
              HasSubstr("too large"));
  EXPECT_THAT(fault("attention_grad", attrs, {out, q, k, v, {}, out, f32({2, 4})}), HasSubstr("a log-sum f32[2,4,3]"));
  EXPECT_THAT(fault("attention_grad", attrs, {out, q, k, v}), HasSubstr("expected 7 inputs"));
}

TEST(Rotary, QuarterTurn) {
  Tensor x = tensor({1, 1, 1, 6}, {1, 2, 3, 4, 5, 6}), cos = tensor({1, 1, 1, 2}, {0, 1}),
         sin = tensor({1, 1, 1, 2}, {1, 0});
  // Halves: pairs (1,3), (2,4); interleaved: (1,2), (3,4). The first angle is a quarter turn, the second none; features
  // 4 and 5 stay.
  EXPECT_THAT(run("rotary", {}, {&x, &cos, &sin})[0].f, ElementsAre(-3, 2, 1, 4, 5, 6));
  EXPECT_THAT(run("rotary", {{"interleaved", int64_t{1}}}, {&x, &cos, &sin})[0].f, ElementsAre(-2, 1, 3, 4, 5, 6));
}

TEST(Rotary, FormulaAndFaults) {
  EXPECT_EQ(formula("rotary", {}, {f32({2, 3, 4, 8}), f32({1, 1, 4, 4}), f32({1, 1, 4, 4})}),
            "~ b h s d^, * * s r^, * * s r -> b h s d");
  EXPECT_THAT(fault("rotary", {}, {f32({2, 3, 4, 8}), f32({1, 1, 4, 5}), f32({1, 1, 4, 5})}),
              HasSubstr("have 5 angles: expected 1 to 4"));
  EXPECT_THAT(fault("rotary", {}, {f32({2, 3, 4, 8}), f32({1, 1, 3, 4}), f32({1, 1, 3, 4})}),
              HasSubstr("dimension 2 is neither 1 nor 4"));
  EXPECT_THAT(fault("rotary", {}, {f32({2, 3, 8}), f32({3, 4}), f32({3, 4})}),
              HasSubstr("expected a float tensor [batch, heads, positions, features]"));
}

// Resizing is no op: nearest is a gather along each dimension, linear a product with a constant matrix on each side.
TEST(Compositions, Resize) {
  Builder b;
  ValueId x = b.input("x", {DType::kF64, {1, 1, 2, 2}});
  ValueId rows = b.constant(ints_literal({0, 0, 1, 1}));
  ValueId nearest = b.emit("gather", {b.emit("gather", {x, rows}, {{"dim", int64_t{2}}}), rows}, {{"dim", int64_t{3}}});
  // 2 -> 3 with aligned corners: positions 0, 0.5, 1.
  ValueId up = b.constant(to_literal(tensor({1, 1, 3, 2}, {1, 0, 0.5, 0.5, 0, 1})));
  ValueId linear = b.matmul(b.matmul(up, x), up, false, true);
  auto out = evaluate_graph(b.graph(), {{x, tensor({1, 1, 2, 2}, {0, 2, 4, 8})}}, {nearest, linear});
  EXPECT_THAT(out[0].f, ElementsAre(0, 0, 2, 2, 0, 0, 2, 2, 4, 4, 8, 8, 4, 4, 8, 8));
  EXPECT_THAT(out[1].f, ElementsAre(0, 1, 2, 2, 3.5, 5, 4, 6, 8));
}

}  // namespace
}  // namespace partita
