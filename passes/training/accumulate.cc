#include "passes/training/accumulate.h"

#include "base/cat.h"
#include "base/metric_output.h"

namespace partita {

ValueId accumulate(Builder& b, const PassContext& context, const std::string& name, const std::string& parameter,
                   ValueId term) {
  State sum{.name = cat("accumulate/", name), .kind = StateKind::kAccumulator, .parameter = parameter, .initial = {}};
  ValueId before = b.state(std::move(sum), b.type(term));
  ValueId after = context.ordered_parts > 0
                      ? b.emit("accumulate_tree", {before, term}, {{"micro_batches", context.ordered_parts}})
                      : b.emit("accumulate", {before, term});
  b.set_next(before, after);
  return after;
}

double share_of_run(const PassContext& context) {
  const auto& losses = context.recipe.loss;
  const bool sum = context.training.loss.empty() && !losses.empty() && losses[0].reduction == Reduction::kSum;
  return sum ? 1 : 1 / static_cast<double>(context.micro_batches);
}

std::vector<GraphOutput> reported_of_step(Builder& b, const PassContext& context) {
  std::vector<GraphOutput> outputs = b.graph().outputs;
  for (size_t k = 0; k < outputs.size(); ++k) {
    GraphOutput& o = outputs[k];
    const auto metric = read_metric_output(o.name);
    const bool mean = metric && metric->reduction == MetricReduction::kMean;
    // Of a sum, all of each run; of the last, 0 but for one run.
    const double share = k == 0 ? share_of_run(context) : mean ? 1 / static_cast<double>(context.micro_batches) : 1;
    if (share != 1) o.value = b.scale(o.value, share);
    if (context.accumulate) o.value = accumulate(b, context, o.name, {}, o.value);
  }
  return outputs;
}

}  // namespace partita
