#include "passes/forward/attach_loss.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita {
namespace {

absl::StatusOr<GraphOutput> find_output(const Graph& graph, const std::string& name) {
  std::string names;
  for (const GraphOutput& o : graph.outputs) {
    if (o.name == name) return o;
    append(names, names.empty() ? "" : ", ", quote(o.name, 100));
  }
  if (name.empty() && graph.outputs.size() == 1) return graph.outputs[0];
  if (name.empty())
    return absl::InvalidArgumentError(
        cat("loss.output: expected the name of one of the model's outputs (", names, "); say which in train.yaml"));
  return absl::InvalidArgumentError(cat("loss.output: the model has no output ", quote(name, 100), "; it has ", names));
}

// Mean over the rows that count: sum(row * counts) / sum(counts). `rows` and `counts` share a shape.
ValueId normalized(Builder& b, const LossRecipe& loss, ValueId rows, ValueId counts) {
  std::vector<int64_t> all;
  for (int d = 0; d < b.rank(rows); ++d) all.push_back(d);
  ValueId total = b.reduce_sum(rows, all, false);
  if (loss.reduction == Reduction::kSum) return total;
  return b.div(total, b.reduce_sum(counts, all, false));
}

TensorType target_type(const Builder& b, const LossRecipe& loss, ValueId predictions) {
  if (loss.kind != LossKind::kCrossEntropy) return b.type(predictions);
  return {DType::kI64, Shape(b.shape(predictions).begin(), b.shape(predictions).end() - 1)};
}

// The model's own input of that name, or a new one.
absl::StatusOr<ValueId> find_target(Builder& b, const LossRecipe& loss, ValueId predictions) {
  const TensorType wanted = target_type(b, loss, predictions);
  for (const GraphInput& in : b.graph().inputs) {
    if (in.name != loss.target) continue;
    const TensorType& type = b.type(in.value);
    const bool alike = is_float(wanted.dtype) ? is_float(type.dtype) : is_integer(type.dtype);
    if (type.shape != wanted.shape || !alike || in.kind != InputKind::kData) {
      return absl::InvalidArgumentError(cat("loss.target: the model's input ", quote(loss.target, 100), " is ",
                                            to_string(type), ", and targets of kind ", enum_name(loss.kind), " are ",
                                            to_string(wanted), "; choose another name, for an input of its own"));
    }
    return b.cast(in.value, wanted.dtype);
  }
  return b.input(loss.target, wanted);
}

ValueId cross_entropy(Builder& b, const LossRecipe& loss, ValueId logits, ValueId target) {
  ValueId counted = b.emit("ne", {target, b.scalar(DType::kI64, static_cast<double>(loss.ignore_index))});
  ValueId safe = b.select(counted, target, b.scalar(DType::kI64, -1));
  ValueId row = b.emit_all("cross_entropy", {logits, safe})[0];
  return normalized(b, loss, row, b.cast(counted, b.dtype(row)));
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
  std::vector<int64_t> all;
  for (int d = 0; d < b.rank(row); ++d) all.push_back(d);
  return loss.reduction == Reduction::kSum ? b.reduce_sum(row, all, false) : b.mean(row, all, false);
}

}  // namespace

absl::StatusOr<Graph> attach_loss(const Graph& graph, const PassContext& context) {
  LossRecipe loss;
  if (!context.training.loss.empty()) {
    loss.output = context.training.loss;
  } else if (context.recipe.loss) {
    loss = *context.recipe.loss;
  } else if (graph.outputs.size() != 1) {
    std::vector<std::string> names;
    for (const GraphOutput& o : graph.outputs) names.push_back(o.name);
    return absl::InvalidArgumentError(
        cat("train.yaml: `loss` is missing and the model has several outputs: ", quote_list(names),
            "; say which is the loss, loss: {kind: output, output: ", names.empty() ? "loss" : names[0],
            "}, or what it is made of"));
  }
  PARTITA_ASSIGN_OR_RETURN(GraphOutput output, find_output(graph, loss.output));
  const TensorType& type = graph.type(output.value);
  if (!is_float(type.dtype)) {
    return absl::InvalidArgumentError(
        cat("loss output ", quote(output.name, 100), ": expected a float tensor, found ", to_string(type)));
  }
  if (loss.kind == LossKind::kOutput && elements(type.shape) != 1) {
    return absl::InvalidArgumentError(
        cat("loss output ", quote(output.name, 100), ": expected a scalar, found ", to_string(type),
            "; reduce it in the model, or say loss: {kind: cross_entropy, …} in train.yaml"));
  }
  if (loss.kind == LossKind::kCrossEntropy && type.rank() < 2) {
    return absl::InvalidArgumentError(cat("loss output ", quote(output.name, 100),
                                          ": cross_entropy expects logits [..., classes], found ", to_string(type)));
  }
  Builder b(graph);
  b.context().origin = b.origin(cat("loss '", enum_name(loss.kind), "'"));
  ValueId value = output.value;
  if (loss.kind == LossKind::kOutput) {
    value = b.reshape(value, {});
  } else {
    PARTITA_ASSIGN_OR_RETURN(const ValueId target, find_target(b, loss, value));
    value = loss.kind == LossKind::kCrossEntropy ? cross_entropy(b, loss, value, target)
                                                 : elementwise_loss(b, loss, value, target);
  }
  b.set_outputs({{"loss", value}});
  return std::move(b).finish();
}

}  // namespace partita
