// Values of convolutions with their channels last: which of them are, what is turned between, and the numbers.
#include "codegen/prepare/channels_last.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "ir/graph/builder.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr DType kNarrow = DType::kBF16;

// Shapes before they are turned, either way, in order.
std::vector<Shape> turned(const Graph& graph) {
  const Graph made = lay_channels_last(graph).graph;
  std::vector<Shape> shapes;
  for (const Node& node : made.nodes) {
    if (node.op->name == "transpose") shapes.push_back(made.type(node.inputs[0]).shape);
  }
  return shapes;
}

Attrs window(int64_t kernel, int64_t stride, int64_t pad) {
  return {{"strides", Shape{stride, stride}},
          {"pads_low", Shape{pad, pad}},
          {"pads_high", Shape{pad, pad}},
          {"kernel", Shape{kernel, kernel}}};
}
Attrs padded(int64_t pad, const char* name = nullptr, const Shape& shape = {}) {
  Attrs attrs = {{"pads_low", Shape{pad, pad}}, {"pads_high", Shape{pad, pad}}};
  if (name != nullptr) attrs.set(name, shape);
  return attrs;
}

// A step of a residual network: a normalized convolution, a pooling, a branch, the mean of each channel, a product; and
// gradients of weights. `type`: of convolutions.
Graph residual(DType type, bool tf32 = false) {
  Builder b;
  const auto conv_attrs = [&](int64_t pad, const char* name = nullptr, const Shape& shape = {}) {
    Attrs attrs = padded(pad, name, shape);
    if (tf32) attrs.set("tf32", int64_t{1});
    return attrs;
  };
  ValueId x = b.input("x", {DType::kF32, {2, 3, 10, 8}}), g = b.input("g", {DType::kF32, {2, 5}});
  b.context().segment = Segment::kPrologue;
  const auto weight = [&](const char* name, Shape shape) {
    return b.cast(b.state({.name = name}, {DType::kF32, std::move(shape)}), type);
  };
  ValueId w = weight("w", {8, 3, 3, 3}), v = weight("v", {8, 8, 3, 3}), u = weight("u", {8, 8, 1, 1}),
          head = weight("head", {8, 5}), scale = b.state({.name = "scale"}, {DType::kF32, {8}});
  b.context().segment = Segment::kForward;
  const auto mean = [&](ValueId a) { return b.reshape(b.mean(a, {0, 2, 3}, false), {1, 8, 1, 1}); };
  ValueId picture = b.cast(x, type), a = b.emit("conv", {picture, w}, conv_attrs(1)), wide = b.cast(a, DType::kF32);
  ValueId centered = b.sub(wide, mean(wide)),
          factor = b.emit("rsqrt", {b.add_scalar(mean(b.mul(centered, centered)), 1e-3)});
  ValueId normed = b.mul(centered, b.mul(factor, b.reshape(scale, {8, 1, 1})));
  ValueId active = b.emit("relu", {b.cast(normed, type)});
  const std::vector<ValueId> pooled = b.emit_all("max_pool", {active}, window(3, 2, 1));
  ValueId sum = b.add(b.emit("conv", {pooled[0], v}, conv_attrs(1)), b.emit("conv", {pooled[0], u}, conv_attrs(0)));
  ValueId features = b.cast(b.mean(b.cast(sum, DType::kF32), {2, 3}, true), type);
  b.output("y", b.cast(b.matmul(b.reshape(features, {2, 8}), head), DType::kF32));
  b.context().segment = Segment::kBackward;
  ValueId df = b.scale(b.cast(b.matmul(b.cast(g, type), head, false, true), DType::kF32), 0.05);
  ValueId ds = b.cast(b.broadcast_to(b.reshape(df, {2, 8, 1, 1}), {2, 8, 5, 4}), type);
  ValueId dp = b.add(b.emit("conv_grad_data", {ds, v}, conv_attrs(1, "input_shape", {2, 8, 5, 4})),
                     b.emit("conv_grad_data", {ds, u}, conv_attrs(0, "input_shape", {2, 8, 5, 4})));
  Attrs pool = window(3, 2, 1);
  pool.set("input_shape", Shape{2, 8, 10, 8});
  ValueId da = b.emit("relu_grad", {b.emit("max_pool_grad", {dp, pooled[1]}, pool), active});
  b.output("dscale", b.reduce_sum(b.mul(b.cast(da, DType::kF32), centered), {0, 2, 3}, false));
  b.context().weight_gradient = true;
  const auto gradient = [&](const char* name, ValueId dy, ValueId from, int64_t pad, Shape shape) {
    b.output(name, b.cast(b.emit("conv_grad_weight", {dy, from}, conv_attrs(pad, "weight_shape", shape)), DType::kF32));
  };
  gradient("dw", da, picture, 1, {8, 3, 3, 3});
  gradient("dv", ds, pooled[0], 1, {8, 8, 3, 3});
  gradient("du", ds, pooled[0], 0, {8, 8, 1, 1});
  return std::move(b).finish();
}

TEST(ChannelsLast_ResidualNetwork, TurnsItsEdgesAlone) {
  EXPECT_THAT(turned(residual(kNarrow)), ElementsAre(Shape{8, 3, 3, 3}, Shape{8, 8, 3, 3}, Shape{2, 3, 10, 8},
                                                     Shape{8, 3, 3, 3}, Shape{8, 3, 3, 8}));
  EXPECT_THAT(turned(residual(DType::kF32)), IsEmpty());  // no tensor cores
}

TEST(ChannelsLast_ResidualNetwork, HasItsNumbers) {
  compare_with_reference(residual(DType::kF32, true), {.target = {.gpu = "sm_90"}, .tolerance = 1e-5});
}

}  // namespace
}  // namespace partita
