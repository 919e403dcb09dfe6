// SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss, ONNX's and ONNX Runtime's.
#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

// [n, c, d1, …] -> [n, d1, …, c].
ValueId classes_last(Emitter& e, ValueId v) {
  int r = e.rank(v);
  std::vector<int64_t> p = {0};
  for (int d = 2; d < r; ++d) p.push_back(d);
  p.push_back(1);
  return r < 3 ? v : e.transpose(v, p);
}

ValueId classes_second(Emitter& e, ValueId v) {
  int r = e.rank(v);
  std::vector<int64_t> p = {0, r - 1};
  for (int d = 1; d < r - 1; ++d) p.push_back(d);
  return r < 3 ? v : e.transpose(v, p);
}

struct Targets {
  ValueId labels;              // integers
  ValueId counted = kNoValue;  // bool, where some are ignored
  ValueId safe;                // labels with the ignored ones replaced by 0
};

Targets targets(Conversion& c, ValueId labels, std::optional<int64_t> ignore) {
  Emitter& e = c.e;
  c.require(is_integer(e.dtype(labels)), "the labels must be integers");
  if (is_unsigned(e.dtype(labels)) || dtype_size(e.dtype(labels)) < 4) labels = e.cast(labels, DType::kI64);
  Targets t{labels, kNoValue, labels};
  if (ignore) {
    t.counted = e.emit("ne", {labels, e.like(labels, static_cast<double>(*ignore))});
    t.safe = e.select(t.counted, labels, e.like(labels, 0));
  }
  return t;
}

// Weighs and reduces the losses of single elements. The mean divides by the weights of the targets that count.
ValueId reduced(Conversion& c, ValueId loss, const Targets& t, ValueId class_weights) {
  Emitter& e = c.e;
  DType type = e.dtype(loss);
  ValueId weights = class_weights == kNoValue ? kNoValue : e.cast(e.gather(class_weights, t.safe, 0), type);
  if (t.counted != kNoValue) {
    ValueId zero = e.scalar(type, 0);
    loss = e.select(t.counted, loss, zero);
    weights = weights == kNoValue ? e.cast(t.counted, type) : e.select(t.counted, weights, zero);
  }
  if (class_weights != kNoValue) loss = e.mul(loss, weights);
  std::string reduction = c.s("reduction", "mean");
  if (reduction == "none") return loss;
  std::vector<int64_t> all;
  for (int d = 0; d < e.rank(loss); ++d) all.push_back(d);
  if (reduction == "sum") return e.sum(loss, all, false);
  c.require(reduction == "mean", "attribute reduction: expected none, sum or mean");
  if (weights == kNoValue) return e.mean(loss, all, false);
  return e.div(e.sum(loss, all, false), e.sum(weights, all, false));
}

void check_shapes(Conversion& c) {
  const Shape &x = c.shape(0), &t = c.shape(1);
  c.require(x.size() >= 2, "the scores need a batch and a class dimension");
  Shape expected = {x[0]};
  expected.insert(expected.end(), x.begin() + 2, x.end());
  c.require(t == expected, cat("labels of shape ", to_string(t), " do not fit scores of shape ", to_string(x)));
  if (c.has(2)) c.require(c.shape(2) == Shape{x[1]}, "expected one weight per class");
}

void cross_entropy_loss(Conversion& c, std::optional<int64_t> ignore) {
  Emitter& e = c.e;
  check_shapes(c);
  ValueId logits = classes_last(e, c.in(0));
  Targets t = targets(c, c.in(1), ignore);
  ValueId loss = e.emit_all("cross_entropy", {logits, t.safe})[0];
  if (c.has(2)) c.services.never_train(c.in(2));
  c.out(0, reduced(c, loss, t, c.has(2) ? c.in(2) : kNoValue));
  if (c.wants(1)) c.out(1, classes_second(e, e.emit("log_softmax", {logits}, {{"dim", int64_t{e.rank(logits) - 1}}})));
}

void softmax_cross_entropy_loss(Conversion& c) {
  cross_entropy_loss(c, c.set("ignore_index") ? std::optional<int64_t>(c.i("ignore_index")) : std::nullopt);
}

// com.microsoft: ignore_index is an input. Output 0 is the loss, 1 log_prob.
void softmax_cross_entropy_loss_internal(Conversion& c) {
  cross_entropy_loss(c, c.has(3) ? std::optional<int64_t>(c.known_int(3, "ignore_index")) : std::nullopt);
}

void negative_log_likelihood_loss(Conversion& c) {
  Emitter& e = c.e;
  check_shapes(c);
  ValueId x = classes_last(e, c.in(0));
  Targets t = targets(c, c.in(1), c.set("ignore_index") ? std::optional<int64_t>(c.i("ignore_index")) : std::nullopt);
  Shape column = e.shape(t.safe);
  column.push_back(1);
  int64_t last = e.rank(x) - 1;
  ValueId picked = e.reshape(e.emit("take_along", {x, e.reshape(t.safe, column)}, {{"dim", last}}), e.shape(t.safe));
  if (c.has(2)) c.services.never_train(c.in(2));
  c.out(reduced(c, e.neg(picked), t, c.has(2) ? c.in(2) : kNoValue));
}

constexpr std::string_view kMicrosoft = "com.microsoft";
constexpr ConvertEntry kTable[] = {
    {"SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy_loss},
    {"NegativeLogLikelihoodLoss", 12, negative_log_likelihood_loss},
    {"SoftmaxCrossEntropyLossInternal", 1, softmax_cross_entropy_loss_internal, kMicrosoft},
    {"NegativeLogLikelihoodLossInternal", 1, negative_log_likelihood_loss, kMicrosoft},
};

}  // namespace

std::span<const ConvertEntry> loss_table() { return kTable; }

}  // namespace partita
