// Activations, softmax among them. Each kink has PyTorch's derivative: ReLU-like ones take the left side's at 0.
#include <cmath>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

void relu(Conversion& c) { c.out(c.e.emit("relu", {c.in(0)})); }
void sigmoid(Conversion& c) { c.out(c.e.emit("sigmoid", {c.in(0)})); }
void softplus(Conversion& c) { c.out(c.e.emit("softplus", {c.in(0)})); }

ValueId is_positive(Emitter& e, ValueId x) { return e.lt(e.like(x, 0), x); }

// x where it is positive, else scale * (exp(x / width) - 1); exp never sees a positive argument.
ValueId elu_of(Emitter& e, ValueId x, double scale, double width) {
  ValueId positive = is_positive(e, x), negative_part = e.select(positive, e.like(x, 0), x);
  return e.select(positive, x, e.scale(e.emit("expm1", {e.scale(negative_part, 1 / width)}), scale));
}

void elu(Conversion& c) { c.out(elu_of(c.e, c.in(0), c.f("alpha", 1), 1)); }

void selu(Conversion& c) {
  double alpha = c.f("alpha", 1.67326319217681884765625), gamma = c.f("gamma", 1.05070102214813232421875);
  c.out(c.e.scale(elu_of(c.e, c.in(0), alpha, 1), gamma));
}

void celu(Conversion& c) {
  double alpha = c.f("alpha", 1);
  c.require(alpha != 0, "attribute alpha must not be 0");
  c.out(elu_of(c.e, c.in(0), alpha, alpha));
}

void leaky_relu(Conversion& c) {
  ValueId x = c.in(0);
  c.out(c.e.select(is_positive(c.e, x), x, c.e.scale(x, c.f("alpha", 0.01))));
}

void prelu(Conversion& c) {
  ValueId x = c.in(0), slope = c.in(1);
  auto shape = broadcast_shapes(c.e.shape(x), c.e.shape(slope));
  c.require(shape && *shape == c.e.shape(x), "the slope must broadcast to the input's shape");
  c.out(c.e.select(is_positive(c.e, x), x, c.e.mul(x, slope)));
}

void thresholded_relu(Conversion& c) {
  ValueId x = c.in(0);
  c.out(c.e.select(c.e.lt(c.e.like(x, c.f("alpha", 1)), x), x, c.e.like(x, 0)));
}

ValueId hard_sigmoid_of(Emitter& e, ValueId x, double alpha, double beta) {
  return e.max(e.min(e.shift(e.scale(x, alpha), beta), e.like(x, 1)), e.like(x, 0));
}

void hard_sigmoid(Conversion& c) { c.out(hard_sigmoid_of(c.e, c.in(0), c.f("alpha", 0.2), c.f("beta", 0.5))); }
void hard_swish(Conversion& c) { c.out(c.e.mul(c.in(0), hard_sigmoid_of(c.e, c.in(0), 1.0 / 6, 0.5))); }

void softsign(Conversion& c) {
  ValueId x = c.in(0);
  c.out(c.e.div(x, c.e.shift(c.e.emit("abs", {x}), 1)));
}

void mish(Conversion& c) {
  ValueId x = c.in(0);
  c.out(c.e.mul(x, c.e.emit("tanh", {c.e.emit("softplus", {x})})));
}

ValueId swish_of(Emitter& e, ValueId x, double alpha) {
  return alpha == 1 ? e.emit("silu", {x}) : e.mul(x, e.emit("sigmoid", {e.scale(x, alpha)}));
}

void swish(Conversion& c) { c.out(swish_of(c.e, c.in(0), c.f("alpha", 1))); }
void quick_gelu(Conversion& c) { c.out(swish_of(c.e, c.in(0), c.f("alpha", 1.702))); }

void shrink(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0);
  double bias = c.f("bias", 0), lambda = c.f("lambd", 0.5);
  DType t = e.dtype(x), wide = is_float(t) ? t : DType::kF32;
  ValueId y = e.cast(x, wide);
  ValueId high = e.select(e.lt(e.like(y, lambda), y), e.shift(y, -bias), e.like(y, 0));
  c.out(e.cast(e.select(e.lt(y, e.like(y, -lambda)), e.shift(y, bias), high), t));
}

ValueId gelu_of(Emitter& e, ValueId x, bool tanh) { return e.emit("gelu", {x}, {{"approximate", int64_t{tanh}}}); }

void gelu(Conversion& c) {
  std::string approximate = c.s("approximate", "none");
  c.require(approximate == "none" || approximate == "tanh", "attribute approximate: expected none or tanh");
  c.out(gelu_of(c.e, c.in(0), approximate == "tanh"));
}

void bias_gelu(Conversion& c) { c.out(gelu_of(c.e, c.e.add(c.in(0), c.in(1)), false)); }
void fast_gelu(Conversion& c) { c.out(gelu_of(c.e, c.has(1) ? c.e.add(c.in(0), c.in(1)) : c.in(0), true)); }

// Before opset 13 the input is seen as a matrix: dimensions before `axis` are rows, those from it on are one softmax.
void softmax_old(Conversion& c) {
  Emitter& e = c.e;
  std::string_view op = c.node.op == "LogSoftmax" ? "log_softmax" : c.node.op == "Softmax" ? "softmax" : "";
  ValueId x = c.in(0);
  Shape shape = e.shape(x);
  int64_t given = c.i("axis", 1);
  int axis = given == static_cast<int64_t>(shape.size()) ? static_cast<int>(given)
                                                         : c.axis(given, static_cast<int>(shape.size()));
  int64_t rows = elements(Shape(shape.begin(), shape.begin() + axis)),
          columns = elements(Shape(shape.begin() + axis, shape.end()));
  if (axis == static_cast<int>(shape.size()) - 1) return c.out(e.emit(op, {x}, {{"dim", int64_t{axis}}}));
  c.out(e.reshape(e.emit(op, {e.reshape(x, {rows, columns})}, {{"dim", int64_t{1}}}), shape));
}

void softmax(Conversion& c) {
  int64_t axis = c.axis(c.i("axis", -1), c.rank(0));
  c.out(c.e.emit(c.node.op == "LogSoftmax" ? "log_softmax" : "softmax", {c.in(0)}, {{"dim", axis}}));
}

// 1 at the first largest element.
ValueId hardmax_of(Conversion& c, ValueId x, int axis) {
  Emitter& e = c.e;
  ValueId best = e.emit("argmax", {x}, {{"dim", int64_t{axis}}, {"keep", int64_t{1}}, {"last", int64_t{0}}});
  Shape line(e.shape(x).size(), 1);
  line[axis] = e.shape(x)[axis];
  return e.cast(e.eq(best, e.reshape(e.iota(line[axis]), line)), e.dtype(x));
}

void hardmax_old(Conversion& c) {
  Emitter& e = c.e;
  Shape shape = c.shape(0);
  int axis = c.axis(c.i("axis", 1), static_cast<int>(shape.size()));
  int64_t rows = elements(Shape(shape.begin(), shape.begin() + axis)),
          columns = elements(Shape(shape.begin() + axis, shape.end()));
  c.out(e.reshape(hardmax_of(c, e.reshape(c.in(0), {rows, columns}), 1), shape));
}

void hardmax(Conversion& c) { c.out(hardmax_of(c, c.in(0), c.axis(c.i("axis", -1), c.rank(0)))); }

void scale(Conversion& c) {  // com.microsoft: by a scalar, up or down
  Emitter& e = c.e;
  ValueId by = e.cast(e.reshape(c.in(1), {}), c.dtype(0));
  c.out(c.i("scale_down", 0) != 0 ? e.div(c.in(0), by) : e.mul(c.in(0), by));
}

constexpr std::string_view kMicrosoft = "com.microsoft";
constexpr ConvertEntry kTable[] = {
    {"Relu", 1, relu},
    {"Sigmoid", 1, sigmoid},
    {"Softplus", 1, softplus},
    {"Elu", 1, elu},
    {"Selu", 1, selu},
    {"Celu", 1, celu},
    {"LeakyRelu", 1, leaky_relu},
    {"PRelu", 7, prelu},
    {"ThresholdedRelu", 1, thresholded_relu},
    {"HardSigmoid", 1, hard_sigmoid},
    {"HardSwish", 1, hard_swish},
    {"Softsign", 1, softsign},
    {"Mish", 1, mish},
    {"Swish", 1, swish},
    {"Shrink", 1, shrink},
    {"Gelu", 1, gelu},
    {"Softmax", 1, softmax_old},
    {"LogSoftmax", 1, softmax_old},
    {"Softmax", 13, softmax},
    {"LogSoftmax", 13, softmax},
    {"Hardmax", 1, hardmax_old},
    {"Hardmax", 13, hardmax},
    {"Gelu", 1, gelu, kMicrosoft},
    {"BiasGelu", 1, bias_gelu, kMicrosoft},
    {"FastGelu", 1, fast_gelu, kMicrosoft},
    {"QuickGelu", 1, quick_gelu, kMicrosoft},
    {"Scale", 1, scale, kMicrosoft},
};

}  // namespace

std::span<const ConvertEntry> activation_table() { return kTable; }

}  // namespace partita
