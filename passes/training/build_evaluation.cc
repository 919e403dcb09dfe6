#include "passes/training/build_evaluation.h"

#include "ir/graph/builder.h"
#include "passes/training/accumulate.h"
#include "passes/training/build_optimizer.h"

namespace partita {

absl::StatusOr<Graph> build_evaluation(const Graph& graph, const PassContext& context) {
  Builder b(graph);
  for (size_t k = 0; k < graph.states.size(); ++k) b.set_next_of(k, kNoValue);
  // As in training, where gradients are summed so: after the micro-batch's forward part.
  b.context() = {.segment = Segment::kBackward, .origin = b.origin("evaluation")};
  b.set_outputs(reported_of_step(b, context));
  Graph out = std::move(b).finish();
  for (State& s : out.states) {
    if (context.recipe.ema && s.kind == StateKind::kParameter) s.name = ema_name(s.name);
  }
  return out;
}

}  // namespace partita
