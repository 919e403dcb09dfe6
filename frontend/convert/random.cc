// Random operators. Each draws from its own instance of a counter-based generator, numbered by step and by the
// element's number in all of the step's samples, so that a split program draws the same numbers.
#include <bit>
#include <cmath>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

// `kind`: "uniform" in [0, 1) or "normal"; f32.
ValueId draw(Conversion& c, std::string_view kind, const Shape& shape) {
  Emitter& e = c.e;
  int64_t seed = c.services.seed();
  if (const OnnxAttribute* a = c.node.find("seed")) {  // a float or, in Dropout, an integer
    if (auto* i = std::get_if<int64_t>(&a->value)) seed = *i;
    if (auto* f = std::get_if<float>(&a->value)) seed = std::bit_cast<int32_t>(*f);
  }
  // A graph of fewer samples than a step takes runs several times: the samples of the next run come behind these.
  const double per_run = static_cast<double>(elements(shape));
  ValueId number = e.add(e.numbers(shape), e.broadcast_to(e.scale(c.services.micro_batch(), per_run), shape));
  return e.emit(kind, {number, c.services.step()}, {{"seed", seed}, {"instance", c.services.next_instance()}});
}

void dropout(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0);
  Shape shape = e.shape(x);
  double ratio = c.version < 12 ? 0 : c.has(1) ? c.known_float(1, "ratio") : 0.5;
  const bool exported = c.version >= 12 && c.has(2) && c.known_float(2, "training_mode") != 0;
  const bool training = exported && c.services.training();
  c.require(ratio >= 0 && ratio <= 1, cat("ratio ", ratio, " is not between 0 and 1"));
  if (!exported && (c.version < 12 ? c.f("ratio", 0.5) : ratio) > 0 && c.services.training()) {
    c.services.warn(
        "Dropout nodes are in their form for inference, the identity (opsets before 12 have no other): export with "
        "opset 12 or newer and training_mode true to train with dropout");
  }
  if (!training || ratio == 0) {
    c.out(0, x);
    bool ones = c.version >= 10;
    if (c.wants(1)) c.out(1, ones ? e.full(DType::kBool, shape, 1) : e.full(e.dtype(x), shape, 1));
    return;
  }
  ValueId u = draw(c, "uniform", shape), kept = e.le(e.like(u, ratio), u);
  c.out(0, e.select(kept, ratio < 1 ? e.scale(x, 1 / (1 - ratio)) : x, e.like(x, 0)));
  if (c.wants(1)) c.out(1, kept);
}

// com.microsoft: dropout(x + bias) + residual.
void bias_dropout(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = e.add(c.in(0), c.in(1));
  double ratio = c.has(3) ? c.known_float(3, "ratio") : 0.5;
  bool training = c.has(4) && c.known_float(4, "training_mode") != 0 && c.services.training() && ratio > 0;
  c.require(ratio >= 0 && ratio < 1, cat("ratio ", ratio, " is not between 0 and 1"));
  ValueId kept = e.full(DType::kBool, e.shape(x), 1);
  if (training) {
    ValueId u = draw(c, "uniform", e.shape(x));
    kept = e.le(e.like(u, ratio), u);
    x = e.select(kept, e.scale(x, 1 / (1 - ratio)), e.like(x, 0));
  }
  c.out(0, c.has(2) ? e.add(x, c.in(2)) : x);
  if (c.wants(1)) c.out(1, kept);
}

Shape given_shape(const Conversion& c) {
  Shape shape = c.ints("shape");
  for (int64_t d : shape) c.require(d >= 0, "a dimension is negative");
  c.require(checked_elements(shape).has_value(), "the shape is too large");
  return shape;
}

void uniform(Conversion& c, const Shape& shape, DType type) {
  double low = c.f("low", 0), high = c.f("high", 1);
  c.out(c.e.cast(c.e.shift(c.e.scale(draw(c, "uniform", shape), high - low), low), type));
}

void normal(Conversion& c, const Shape& shape, DType type) {
  c.out(c.e.cast(c.e.shift(c.e.scale(draw(c, "normal", shape), c.f("scale", 1)), c.f("mean", 0)), type));
}

DType like_type(const Conversion& c) {
  DType t = c.set("dtype") ? c.element(c.i("dtype")) : c.dtype(0);
  c.require(is_float(t), "random numbers must be of a float type");
  return t;
}

void random_uniform(Conversion& c) { uniform(c, given_shape(c), c.element(c.i("dtype", 1))); }
void random_normal(Conversion& c) { normal(c, given_shape(c), c.element(c.i("dtype", 1))); }
void random_uniform_like(Conversion& c) { uniform(c, c.shape(0), like_type(c)); }
void random_normal_like(Conversion& c) { normal(c, c.shape(0), like_type(c)); }

void bernoulli(Conversion& c) {
  Emitter& e = c.e;
  ValueId u = draw(c, "uniform", c.shape(0));
  c.out(e.cast(e.lt(u, e.cast(c.in(0), DType::kF32)), c.set("dtype") ? c.element(c.i("dtype")) : c.dtype(0)));
}

constexpr ConvertEntry kTable[] = {
    {"Dropout", 7, dropout},
    {"RandomUniform", 1, random_uniform},
    {"RandomNormal", 1, random_normal},
    {"RandomUniformLike", 1, random_uniform_like},
    {"RandomNormalLike", 1, random_normal_like},
    {"Bernoulli", 15, bernoulli},
    {"BiasDropout", 1, bias_dropout, "com.microsoft"},
};

}  // namespace

std::span<const ConvertEntry> random_table() { return kTable; }

}  // namespace partita
