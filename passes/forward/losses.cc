#include "passes/forward/losses.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/dependence.h"
#include "passes/forward/join_teacher.h"

namespace partita {
namespace {

constexpr double kShortest = 1e-12;           // of what is divided by its length, as torch's normalize() has it
constexpr double kDefaultTemperature = 0.07;  // of contrastive losses, CLIP's at first

// `key`: "loss.output", for messages.
absl::StatusOr<GraphOutput> find_output(const LossScope& scope, std::string_view key, const std::string& name) {
  std::string names;
  size_t own = 0;
  for (const GraphOutput& o : scope.outputs) {
    if (o.name == name) return o;
    if (is_of_teacher(o.name)) continue;
    ++own;
    append(names, names.empty() ? "" : ", ", quote(o.name, 100));
  }
  if (name.empty() && own == 1) return scope.outputs[0];
  if (name.empty())
    return absl::InvalidArgumentError(
        cat(key, ": expected the name of one of the model's outputs (", names, "); say which in train.yaml"));
  return absl::InvalidArgumentError(cat(key, ": the model has no output ", quote(name, 100), "; it has ", names));
}

absl::StatusOr<GraphOutput> find_floats(const LossScope& scope, std::string_view key, const std::string& name) {
  PARTITA_ASSIGN_OR_RETURN(GraphOutput output, find_output(scope, key, name));
  const TensorType& type = scope.b.type(output.value);
  if (is_float(type.dtype)) return output;
  return absl::InvalidArgumentError(
      cat(key, ": output ", quote(output.name, 100), ": expected a float tensor, found ", to_string(type)));
}

std::vector<int64_t> all_dims(const Builder& b, ValueId v) {
  std::vector<int64_t> all;
  for (int d = 0; d < b.rank(v); ++d) all.push_back(d);
  return all;
}

// The mean or the sum over all elements.
ValueId reduced(Builder& b, Reduction reduction, ValueId v) {
  return reduction == Reduction::kSum ? b.reduce_sum(v, all_dims(b, v), false) : b.mean(v, all_dims(b, v), false);
}

// Mean over the rows that count: sum(row * counts) / sum(counts). `rows` and `counts` share a shape.
ValueId normalized(Builder& b, Reduction reduction, ValueId rows, ValueId counts) {
  ValueId total = b.reduce_sum(rows, all_dims(b, rows), false);
  if (reduction == Reduction::kSum) return total;
  return b.div(total, b.reduce_sum(counts, all_dims(b, counts), false));
}

// The model's own input of that name, or a new one.
absl::StatusOr<ValueId> find_target(Builder& b, std::string_view kind, const std::string& name,
                                    const TensorType& wanted) {
  for (const GraphInput& in : b.graph().inputs) {
    if (in.name != name) continue;
    const TensorType& type = b.type(in.value);
    const bool alike = is_float(wanted.dtype) ? is_float(type.dtype) : is_integer(type.dtype);
    if (type.shape != wanted.shape || !alike || in.kind != InputKind::kData) {
      return absl::InvalidArgumentError(cat("loss.target: the model's input ", quote(name, 100), " is ",
                                            to_string(type), ", and targets of kind ", kind, " are ", to_string(wanted),
                                            "; choose another name, for an input of its own"));
    }
    return b.cast(in.value, wanted.dtype);
  }
  return b.input(name, wanted);
}

// Classes of rows of scores, and which of them count.
struct Classes {
  ValueId target, counted;
};

absl::StatusOr<Classes> find_classes(Builder& b, std::string_view kind, const GraphOutput& scores,
                                     const std::string& name, int64_t ignore_index) {
  const Shape& shape = b.shape(scores.value);
  if (shape.size() < 2)
    return absl::InvalidArgumentError(cat("loss output ", quote(scores.name, 100), ": ", kind,
                                          " expects logits [..., classes], found ", to_string(b.type(scores.value))));
  PARTITA_ASSIGN_OR_RETURN(const ValueId target,
                           find_target(b, kind, name, {DType::kI64, Shape(shape.begin(), shape.end() - 1)}));
  return Classes{target, b.emit("ne", {target, b.scalar(DType::kI64, static_cast<double>(ignore_index))})};
}

// x to a power that is a number.
ValueId power(Builder& b, ValueId x, double exponent) {
  if (exponent == 1) return x;
  return exponent == 2 ? b.mul(x, x) : b.emit("pow", {x, b.scalar(b.dtype(x), exponent)});
}

ValueId cross_entropy(Builder& b, const LossRecipe& loss, ValueId logits, const Classes& classes) {
  const ValueId safe = b.select(classes.counted, classes.target, b.scalar(DType::kI64, -1));
  const std::vector<ValueId> made = b.emit_all("cross_entropy", {logits, safe});
  ValueId row = made[0];
  const ValueId log_sum = made[1], counts = b.cast(classes.counted, b.dtype(row));
  if (loss.focal) {  // of a row that does not count 0, as it was
    const ValueId wrong = b.sub(b.scalar(b.dtype(row), 1), b.emit("exp", {b.neg(row)}));
    row = b.mul(row, power(b, wrong, loss.focal->gamma));
  }
  if (loss.label_smoothing > 0) {  // the mean over all classes of what each would cost
    const ValueId mean = b.cast(b.mean(logits, {b.rank(logits) - 1}, false), b.dtype(row));
    const ValueId even = b.mul(b.sub(log_sum, mean), counts);
    row = b.add(b.scale(row, 1 - loss.label_smoothing), b.scale(even, loss.label_smoothing));
  }
  if (loss.z_loss > 0) row = b.add(row, b.scale(b.mul(b.mul(log_sum, log_sum), counts), loss.z_loss));
  return normalized(b, loss.reduction, row, counts);
}

// Losses that compare element by element: mean or sum over all elements.
ValueId elementwise_loss(Builder& b, const LossRecipe& loss, ValueId x, ValueId target) {
  ValueId row;
  if (loss.kind == LossKind::kBceWithLogits) {  // max(x, 0) - x t + log(1 + exp(-|x|))
    ValueId tail = b.emit("log1p", {b.emit("exp", {b.neg(b.emit("abs", {x}))})});
    row = b.add(b.sub(b.emit("relu", {x}), b.mul(x, target)), tail);
  } else {
    ValueId d = b.sub(x, target);
    row = loss.kind == LossKind::kMse ? b.mul(d, d) : b.emit("abs", {d});
  }
  if (loss.focal) {  // p + t - 2pt: the probability of what is not the case
    const ValueId p = b.emit("sigmoid", {x}), both = b.mul(p, target);
    row = b.mul(row, power(b, b.sub(b.add(p, target), b.add(both, both)), loss.focal->gamma));
    if (const auto& alpha = loss.focal->alpha)  // alpha t + (1 - alpha)(1 - t)
      row = b.mul(row, b.add_scalar(b.scale(target, 2 * *alpha - 1), 1 - *alpha));
  }
  return reduced(b, loss.reduction, row);
}

// log softmax(scores / temperature) along the last dimension.
ValueId log_probabilities(Builder& b, ValueId scores, double temperature) {
  if (temperature != 1) scores = b.scale(scores, 1 / temperature);
  return b.emit("log_softmax", {scores}, {{"dim", int64_t{b.rank(scores) - 1}}});
}

// temperature² KL(teacher || model), of rows of scores (Hinton, Vinyals and Dean, 2015).
absl::StatusOr<ValueId> kl(const LossScope& scope, const LossRecipe& loss, const GraphOutput& scores) {
  Builder& b = scope.b;
  const std::string name = of_teacher(loss.teacher_output.empty() ? scores.name : loss.teacher_output);
  std::string there;
  ValueId teacher = kNoValue;
  for (const GraphOutput& o : scope.outputs) {
    if (o.name == name) teacher = o.value;
    if (is_of_teacher(o.name)) append(there, there.empty() ? "" : ", ", quote(name_at_teacher(o.name), 100));
  }
  if (teacher == kNoValue)
    return absl::InvalidArgumentError(cat("loss.teacher_output: ", quote(loss.teacher, 200), " has no output ",
                                          quote(name_at_teacher(name), 100), "; it has ", there));
  const TensorType own = b.type(scores.value), type = b.type(teacher);
  if (own.rank() < 2 || type.shape != own.shape || !is_float(type.dtype))
    return absl::InvalidArgumentError(cat("loss.teacher: expected scores [..., classes] of one shape, found ",
                                          to_string(own), " of ", quote(scores.name, 100), " and ", to_string(type),
                                          " of the teacher's ", quote(name_at_teacher(name), 100)));
  const double temperature = loss.temperature.value_or(1);
  const ValueId log_p = b.cast(log_probabilities(b, teacher, temperature), own.dtype),
                log_q = log_probabilities(b, scores.value, temperature);
  ValueId row = b.reduce_sum(b.mul(b.emit("exp", {log_p}), b.sub(log_p, log_q)), {own.rank() - 1}, false);
  if (temperature != 1) row = b.scale(row, temperature * temperature);
  if (loss.target.empty()) return reduced(b, loss.reduction, row);
  PARTITA_ASSIGN_OR_RETURN(const Classes classes, find_classes(b, "kl", scores, loss.target, loss.ignore_index));
  const ValueId counts = b.cast(classes.counted, b.dtype(row));
  return normalized(b, loss.reduction, b.mul(row, counts), counts);
}

// Rows of length 1.
ValueId unit_rows(Builder& b, ValueId v) {
  const ValueId length = b.emit("sqrt", {b.reduce_sum(b.mul(v, v), {1}, true)});
  return b.div(v, b.emit("max", {length, b.scalar(b.dtype(v), kShortest)}));
}

// Each sample's embedding is to be nearest to its own other one, among those of all samples, and the other way round
// (CLIP's; InfoNCE).
absl::StatusOr<ValueId> contrastive(const LossScope& scope, const LossRecipe& loss, const GraphOutput& one) {
  Builder& b = scope.b;
  PARTITA_ASSIGN_OR_RETURN(const GraphOutput other, find_floats(scope, "loss.with", loss.with));
  const TensorType type = b.type(one.value);
  if (type.rank() != 2 || b.type(other.value) != type)
    return absl::InvalidArgumentError(
        cat("loss: contrastive expects two outputs [samples, features] of one type, found ", to_string(type), " of ",
            quote(one.name, 100), " and ", to_string(b.type(other.value)), " of ", quote(other.name, 100)));
  ValueId alike = b.matmul(unit_rows(b, one.value), unit_rows(b, other.value), false, true);
  if (loss.logit_scale.empty()) {
    alike = b.scale(alike, 1 / loss.temperature.value_or(kDefaultTemperature));
  } else {
    PARTITA_ASSIGN_OR_RETURN(const GraphOutput scale, find_floats(scope, "loss.logit_scale", loss.logit_scale));
    if (elements(b.shape(scale.value)) != 1 || b.dtype(scale.value) != type.dtype)
      return absl::InvalidArgumentError(cat("loss.logit_scale: expected a scalar of ", dtype_name(type.dtype),
                                            ", found ", to_string(b.type(scale.value))));
    alike = b.mul(alike, b.reshape(scale.value, {}));
  }
  const ValueId own = b.emit("iota", {}, {{"size", type.shape[0]}, {"to", DType::kI64}});
  const ValueId rows = b.emit_all("cross_entropy", {alike, own})[0],
                columns = b.emit_all("cross_entropy", {b.transpose(alike, {1, 0}), own})[0];
  return b.scale(reduced(b, loss.reduction, b.add(rows, columns)), 0.5);
}

// The share of rows whose class is among the `top` highest scores; a score as high as that of the class is not higher.
absl::StatusOr<ValueId> accuracy(const LossScope& scope, const std::string& key, const MetricRecipe& metric) {
  Builder& b = scope.b;
  PARTITA_ASSIGN_OR_RETURN(const GraphOutput scores, find_floats(scope, key + ".output", metric.output));
  PARTITA_ASSIGN_OR_RETURN(const Classes classes,
                           find_classes(b, "accuracy", scores, metric.target, metric.ignore_index));
  const Shape shape = b.shape(scores.value);
  const int64_t last = b.rank(scores.value) - 1, count = shape.back();
  if (metric.top > count)
    return absl::InvalidArgumentError(cat(key, ".top: expected at most the ", count, " classes of ",
                                          quote(scores.name, 100), ", found ", metric.top));
  Shape column = b.shape(classes.target);
  column.push_back(1);
  const ValueId zero = b.scalar(b.dtype(scores.value), 0), number = b.reshape(classes.target, column);
  const ValueId at = b.emit("iota", {}, {{"size", count}, {"to", DType::kI64}});
  const ValueId own = b.reduce_sum(b.select(b.emit("eq", {at, number}), scores.value, zero), {last}, /*keep=*/true);
  const ValueId higher = b.reduce_sum(b.cast(b.emit("lt", {own, scores.value}), DType::kF32), {last}, false);
  const ValueId hit = b.emit("lt", {higher, b.scalar(DType::kF32, static_cast<double>(metric.top))});
  // What is no number is not among the highest, though nothing is higher.
  const ValueId real = b.reshape(b.emit("eq", {own, own}), b.shape(hit));
  const ValueId known = b.emit("le", {b.scalar(DType::kI64, 0), classes.target});
  const ValueId right = b.emit("and", {b.emit("and", {hit, real}), b.emit("and", {known, classes.counted})});
  return normalized(b, Reduction::kMean, b.cast(right, DType::kF32), b.cast(classes.counted, DType::kF32));
}

ValueId micro_batch(Builder& b) {
  for (const GraphInput& in : b.graph().inputs)
    if (in.kind == InputKind::kMicroBatch) return in.value;
  return b.input("partita.micro_batch", {DType::kI64, {}}, InputKind::kMicroBatch);
}

// The last element of those of all runs, in the order of the samples: 0 in all runs but the one that has it. Elements
// are numbered through the step, so that a split program finds the serial one's.
ValueId last_element(Builder& b, ValueId v, int64_t micro_batches) {
  const Shape shape = b.shape(v);
  const int64_t count = elements(shape);
  const ValueId iota = b.emit("iota", {}, {{"size", count}, {"to", DType::kI64}});
  const ValueId before = b.scale(micro_batch(b), static_cast<double>(count));
  const ValueId number = b.add(b.reshape(iota, shape), b.broadcast_to(before, shape));
  const ValueId last = b.emit("eq", {number, b.scalar(DType::kI64, static_cast<double>(micro_batches * count - 1))});
  return b.reduce_sum(b.select(last, v, b.scalar(b.dtype(v), 0)), all_dims(b, v), false);
}

}  // namespace

absl::StatusOr<ValueId> loss_value(const LossScope& scope, const LossRecipe& loss) {
  Builder& b = scope.b;
  PARTITA_ASSIGN_OR_RETURN(const GraphOutput output, find_floats(scope, "loss.output", loss.output));
  switch (loss.kind) {
    case LossKind::kOutput:
      if (elements(b.shape(output.value)) != 1) {
        return absl::InvalidArgumentError(
            cat("loss output ", quote(output.name, 100), ": expected a scalar, found ", to_string(b.type(output.value)),
                "; reduce it in the model, or say loss: {kind: cross_entropy, …} in train.yaml"));
      }
      return b.reshape(output.value, {});
    case LossKind::kCrossEntropy: {
      PARTITA_ASSIGN_OR_RETURN(const Classes classes,
                               find_classes(b, enum_name(loss.kind), output, loss.target, loss.ignore_index));
      return cross_entropy(b, loss, output.value, classes);
    }
    case LossKind::kKl:
      return kl(scope, loss, output);
    case LossKind::kContrastive:
      return contrastive(scope, loss, output);
    case LossKind::kMse:
    case LossKind::kBceWithLogits:
    case LossKind::kL1:
      break;
  }
  PARTITA_ASSIGN_OR_RETURN(const ValueId target,
                           find_target(b, enum_name(loss.kind), loss.target, b.type(output.value)));
  return elementwise_loss(b, loss, output.value, target);
}

absl::StatusOr<ValueId> metric_value(const LossScope& scope, const std::string& name, const MetricRecipe& metric,
                                     int64_t micro_batches) {
  const std::string key = cat("metrics.", name);
  if (metric.kind == MetricKind::kAccuracy) return accuracy(scope, key, metric);
  PARTITA_ASSIGN_OR_RETURN(const GraphOutput output, find_output(scope, key + ".output", metric.output));
  Builder& b = scope.b;
  const DType dtype = b.dtype(output.value);
  const ValueId floats = is_float(dtype) ? output.value : b.cast(output.value, DType::kF32);
  if (metric.reduce == MetricReduction::kLast) {
    if (b.rank(floats) == 0 && Dependence(b.graph()).on_data(floats))
      return absl::InvalidArgumentError(
          cat(key, ".reduce: last: ", quote(output.name, 100),
              " is one number of several samples, and of which depends on how a step is divided; give a number for "
              "each sample, or take the mean"));
    return b.reshape(last_element(b, floats, micro_batches), {});
  }
  const bool sum = metric.reduce == MetricReduction::kSum;
  return b.reshape(reduced(b, sum ? Reduction::kSum : Reduction::kMean, floats), {});
}

}  // namespace partita
