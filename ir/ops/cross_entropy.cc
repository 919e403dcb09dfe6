#include <limits>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/wide.h"

namespace partita {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

absl::Status check_logits(const TensorType& logits, const TensorType& labels) {
  if (!is_float(logits.dtype) || logits.rank() < 1)
    return absl::InvalidArgumentError(cat("expected float logits [..., classes], found ", to_string(logits)));
  if (!is_integer(labels.dtype) || labels.shape != Shape(logits.shape.begin(), logits.shape.end() - 1)) {
    return absl::InvalidArgumentError(
        cat("expected integer labels, one for each row of logits ", to_string(logits), ", found ", to_string(labels)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> cross_entropy_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_logits(use.inputs[0], use.inputs[1]));
  TensorType row{wide_type(use.dtype()), use.shape(1)};
  return std::vector<TensorType>{row, row};
}

absl::StatusOr<std::vector<TensorType>> cross_entropy_grad_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_logits(use.inputs[1], use.inputs[2]));
  for (int k : {0, 3}) {
    const TensorType& t = use.inputs[k];
    if (t.shape != use.shape(2) || t.dtype != wide_type(use.dtype(1))) {
      return absl::InvalidArgumentError(cat("expected ", k == 0 ? "a gradient " : "a log-sum ",
                                            to_string(TensorType{wide_type(use.dtype(1)), use.shape(2)}),
                                            " for logits ", to_string(use.inputs[1]), ", found ", to_string(t)));
    }
  }
  return std::vector<TensorType>{use.inputs[1]};
}

// " a b" for the rows.
std::string row_factors(int rank) {
  std::string rows;
  for (int d = 0; d < rank; ++d) append(rows, " ", factor_name(d));
  return rows;
}

std::string cross_entropy_formula(const OpView& use) {
  std::string rows = row_factors(use.rank(1));
  return cat(rows, " v^,", rows, " ->", rows, ",", rows);
}

std::string cross_entropy_grad_formula(const OpView& use) {
  std::string rows = row_factors(use.rank(2));
  return cat("~", rows, ",", rows, " v^,", rows, ",", rows, " ->", rows, " v");
}

// The labels in a type that can tell every class, whether each names a class, and [..., v] true where the class is the
// label.
struct Labels {
  ValueId valid, chosen;
};

Labels compare_labels(Builder& b, ValueId labels, const Shape& logits) {
  int64_t classes = logits.back();
  bool narrow = b.dtype(labels) == DType::kI32 && classes <= std::numeric_limits<int32_t>::max();
  labels = b.cast(labels, narrow ? DType::kI32 : DType::kI64);
  DType type = b.dtype(labels);
  ValueId count = b.constant(to_literal({{type, {}}, {}, {classes}}));
  ValueId valid = b.emit("and", {b.emit("le", {b.scalar(type, 0), labels}), b.emit("lt", {labels, count})});
  Shape column = b.shape(labels);
  column.push_back(1);
  ValueId iota = b.emit("iota", {}, {{"size", classes}, {"to", type}});
  return {valid, b.emit("eq", {iota, b.reshape(labels, column)})};
}

// A value per row -> [..., 1].
ValueId per_row(Builder& b, ValueId v) {
  Shape column = b.shape(v);
  column.push_back(1);
  return b.reshape(v, std::move(column));
}

// v, or 0 where it is -inf: what to subtract in exponents so that a row of only -inf gives zeros rather than NaN.
ValueId finite(Builder& b, ValueId v) {
  return b.select(b.emit("eq", {v, b.scalar(b.dtype(v), -kInfinity)}), b.scalar(b.dtype(v), 0), v);
}

std::vector<ValueId> cross_entropy_expand(const OpUse& use) {
  Builder& b = use.b;
  ValueId x = widen(b, use.inputs[0]);
  int64_t dim = use.types[0].rank() - 1;
  Labels labels = compare_labels(b, use.inputs[1], use.types[0].shape);
  ValueId zero = b.scalar(b.dtype(x), 0), max = finite(b, b.reduce("reduce_max", x, {dim}, false));
  ValueId sum = b.reduce_sum(b.emit("exp", {b.sub(x, per_row(b, max))}), {dim}, false);
  ValueId lse = b.add(max, b.emit("log", {sum}));
  ValueId picked = b.reduce_sum(b.select(labels.chosen, x, zero), {dim}, false);
  return {b.select(labels.valid, b.sub(lse, picked), zero), lse};
}

std::vector<ValueId> cross_entropy_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId dx = kNoValue;
  if (use.gradients[0] != kNoValue)
    dx = b.emit("cross_entropy_grad", {use.gradients[0], use.inputs[0], use.inputs[1], use.outputs[1]});
  if (use.gradients[1] != kNoValue) {
    ValueId p = b.emit("exp", {b.sub(widen(b, use.inputs[0]), per_row(b, finite(b, use.outputs[1])))});
    ValueId term = b.cast(b.mul(p, per_row(b, use.gradients[1])), use.types[0].dtype);
    dx = dx == kNoValue ? term : b.add(dx, term);
  }
  return {dx, kNoValue};
}

std::vector<ValueId> cross_entropy_grad_expand(const OpUse& use) {
  Builder& b = use.b;
  ValueId g = use.inputs[0], x = widen(b, use.inputs[1]), lse = use.inputs[3];
  Labels labels = compare_labels(b, use.inputs[2], use.types[1].shape);
  ValueId zero = b.scalar(b.dtype(x), 0), one = b.scalar(b.dtype(x), 1);
  ValueId p = b.emit("exp", {b.sub(x, per_row(b, finite(b, lse)))});
  ValueId d = b.mul(b.sub(p, b.select(labels.chosen, one, zero)), per_row(b, g));
  return {b.cast(b.select(per_row(b, labels.valid), d, zero), use.types[1].dtype)};
}

}  // namespace

// (logits [..., v], integer labels [...]) -> loss [...] = lse - logits[label], lse [...] = log(sum(exp(logits))), both
// in f32 where logits are 16 bits wide. A label outside [0, v) gives loss 0. The picked logit is a masked sum, so that
// all is one pass over rows and a split of v leaves partial sums.
extern const OpDef kCrossEntropy = {
    .name = "cross_entropy",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = cross_entropy_formula,
    .infer = cross_entropy_types,
    .flops_per_point = 13,
    .gradient = cross_entropy_gradient,
    .expand = cross_entropy_expand,
    .split_form = cross_entropy_expand,
    .precision = OperandPrecision::kAsIs,
};

// (gradient of the loss, logits, labels, lse) -> gradient of the logits: (exp(logits - lse) - onehot(label)) g; zero in
// rows whose label is outside.
extern const OpDef kCrossEntropyGrad = {
    .name = "cross_entropy_grad",
    .min_inputs = 4,
    .max_inputs = 4,
    .formula_of = cross_entropy_grad_formula,
    .infer = cross_entropy_grad_types,
    .flops_per_point = 13,
    .expand = cross_entropy_grad_expand,
    .split_form = cross_entropy_grad_expand,
};

}  // namespace partita
