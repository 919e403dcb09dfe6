#include "passes/training/accumulate.h"

#include "base/cat.h"

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
  const auto& loss = context.recipe.loss;
  const bool sum = context.training.loss.empty() && loss && loss->reduction == Reduction::kSum;
  return sum ? 1 : 1 / static_cast<double>(context.micro_batches);
}

}  // namespace partita
