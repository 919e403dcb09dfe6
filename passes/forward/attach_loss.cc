#include "passes/forward/attach_loss.h"

#include <algorithm>

#include "base/cat.h"
#include "base/metric_output.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "passes/forward/losses.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<LossRecipe>> losses_of(const Graph& graph, const PassContext& context) {
  if (!context.training.loss.empty()) {
    LossRecipe own;
    own.output = context.training.loss;
    return std::vector<LossRecipe>{own};
  }
  if (!context.recipe.loss.empty()) return context.recipe.loss;
  if (graph.outputs.size() == 1) return std::vector<LossRecipe>{LossRecipe{}};
  std::vector<std::string> names;
  for (const GraphOutput& o : graph.outputs) names.push_back(o.name);
  return absl::InvalidArgumentError(
      cat("train.yaml: `loss` is missing and the model has several outputs: ", quote_list(names),
          "; say which is the loss, loss: {kind: output, output: ", names.empty() ? "loss" : names[0],
          "}, or what it is made of"));
}

// What a step reports has 32 bits at least, whatever the model computes in.
ValueId reported(Builder& b, ValueId value) {
  return is_float(b.dtype(value)) && dtype_size(b.dtype(value)) < 4 ? b.cast(value, DType::kF32) : value;
}

}  // namespace

absl::StatusOr<Graph> attach_loss(const Graph& graph, const PassContext& context) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<LossRecipe> losses, losses_of(graph, context));
  Builder b(graph);
  const LossScope scope{b, graph.outputs};
  std::vector<GraphOutput> outputs(1);
  ValueId total = kNoValue;
  for (const LossRecipe& loss : losses) {
    b.context() = {.segment = Segment::kForward, .origin = b.origin(cat("loss '", enum_name(loss.kind), "'"))};
    PARTITA_ASSIGN_OR_RETURN(ValueId value, loss_value(scope, loss));
    value = reported(b, value);
    if (losses.size() > 1) {
      const bool sum = loss.reduction == Reduction::kSum;
      outputs.push_back(
          {metric_output({sum ? MetricReduction::kSum : MetricReduction::kMean, cat("loss_", loss.name)}), value});
    }
    if (loss.weight != 1) value = b.scale(value, loss.weight);
    if (total != kNoValue && b.dtype(total) != b.dtype(value)) value = b.cast(value, b.dtype(total));
    total = total == kNoValue ? value : b.add(total, value);
  }
  for (const auto& [name, metric] : context.recipe.metrics) {
    b.context() = {.segment = Segment::kForward, .origin = b.origin(cat("metric '", name, "'"))};
    PARTITA_ASSIGN_OR_RETURN(const ValueId value, metric_value(scope, name, metric, context.micro_batches));
    const std::string output = metric_output({metric.reduce, name});
    if (std::any_of(outputs.begin(), outputs.end(), [&](const GraphOutput& o) { return o.name == output; }))
      return absl::InvalidArgumentError(cat("metrics.", name, ": expected another name than that of a loss's term"));
    outputs.push_back({output, reported(b, value)});
  }
  outputs[0] = {"loss", total};
  b.set_outputs(std::move(outputs));
  return std::move(b).finish();
}

}  // namespace partita
