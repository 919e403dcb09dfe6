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

ValueId cross_entropy(Builder& b, const LossRecipe& loss, ValueId logits) {
  Shape rows(b.shape(logits).begin(), b.shape(logits).end() - 1);
  ValueId target = b.input(loss.target, {DType::kI64, rows});
  ValueId counted = b.emit("ne", {target, b.scalar(DType::kI64, static_cast<double>(loss.ignore_index))});
  ValueId safe = b.select(counted, target, b.scalar(DType::kI64, -1));
  ValueId row = b.emit_all("cross_entropy", {logits, safe})[0];
  return normalized(b, loss, row, b.cast(counted, b.dtype(row)));
}

// Losses that compare element by element: mean or sum over all elements.
ValueId elementwise_loss(Builder& b, const LossRecipe& loss, ValueId x) {
  ValueId target = b.input(loss.target, b.type(x)), row;
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
    return absl::InvalidArgumentError(
        "train.yaml: `loss` is missing and the model has several outputs; say e.g. loss: {kind: output, output: loss}");
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
  for (const GraphInput& in : graph.inputs) {
    if (loss.kind != LossKind::kOutput && in.name == loss.target) {
      return absl::InvalidArgumentError(
          cat("loss.target: the model already has an input ", quote(loss.target, 100), "; choose another name"));
    }
  }
  Builder b(graph);
  b.context().origin = b.origin(cat("loss '", enum_name(loss.kind), "'"));
  ValueId value = loss.kind == LossKind::kOutput         ? b.reshape(output.value, {})
                  : loss.kind == LossKind::kCrossEntropy ? cross_entropy(b, loss, output.value)
                                                         : elementwise_loss(b, loss, output.value);
  b.mutable_graph().outputs = {{"loss", value}};
  return std::move(b).finish();
}

}  // namespace partita
