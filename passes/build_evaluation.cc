#include "passes/build_evaluation.h"

#include "ir/builder.h"

namespace partita {

absl::StatusOr<Graph> build_evaluation(const Graph& graph, const PassContext& context) {
  Builder b(graph);
  for (State& s : b.mutable_graph().states) s.next = kNoValue;
  ValueId loss = b.graph().outputs[0].value;
  // As in training, where gradients are summed so: after the micro-batch's forward part.
  b.context() = {.segment = Segment::kBackward, .origin = b.origin("evaluation")};
  if (context.micro_batches > 1) loss = b.scale(loss, 1.0 / static_cast<double>(context.micro_batches));
  if (context.accumulate) {
    State sum{.name = "accumulate/loss", .kind = StateKind::kAccumulator, .parameter = {}, .initial = {}};
    ValueId before = b.state(std::move(sum), b.type(loss));
    loss = b.emit("accumulate", {before, loss});
    b.mutable_graph().states.back().next = loss;
  }
  b.mutable_graph().outputs = {{"loss", loss}};
  return std::move(b).finish();
}

}  // namespace partita
