#include "tools/flow/evaluation.h"

#include <map>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "passes/pipeline.h"
#include "tools/flow/bound_inputs.h"
#include "tools/flow/training_graph.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {
namespace {

// Both hold the same states.
void check_states(const Graph& graph, const Graph& training) {
  std::map<std::string_view, DType> held;
  for (const State& s : training.states) held[s.name] = training.type(s.value).dtype;
  for (const State& s : graph.states) {
    auto at = held.find(s.name);
    PARTITA_CHECK(at == held.end() || at->second == graph.type(s.value).dtype,
                  cat("state ", quote(s.name), " is ", dtype_name(graph.type(s.value).dtype), " in evaluation"));
  }
}

}  // namespace

absl::StatusOr<Graph> evaluation_graph(ModelSource& source, std::optional<int64_t> bound_batch, int64_t graph_batch,
                                       const PassContext& context, PassRun& run) {
  PARTITA_ASSIGN_OR_RETURN(auto model, source.import(bound_batch, /*training=*/false));
  PARTITA_ASSIGN_OR_RETURN(const int64_t samples, samples_of_run(model->graph));
  if (samples != graph_batch) {
    PARTITA_ASSIGN_OR_RETURN(model, source.resized(model, graph_batch));
  }
  PARTITA_RETURN_IF_ERROR(run.start(graphs_of(model->graph)));
  PARTITA_ASSIGN_OR_RETURN(Graph graph, run_passes(graph_passes(PassUse::kEvaluation), model->graph, context, run));
  return with_tensor_blocks(std::move(graph), context.recipe);
}

absl::StatusOr<CompiledEvaluation> compile_evaluation(ModelSource& source, const Partition& training,
                                                      const TargetOptions& target, PassRun& run) {
  const ModelInHand& m = training.model;
  Layout layout = m.layout;
  if (layout.schedule == PipelineSchedule::kPipedream) layout.schedule = PipelineSchedule::k1f1b;  // nothing is updated
  PARTITA_ASSIGN_OR_RETURN(Graph graph, evaluation_graph(source, batch_to_bind(source, m.recipe, m.layout),
                                                         m.batch.graph_batch, training.training.context, run));
  check_states(graph, training.planned.joined.graph);
  StateOwners owners = state_owners(training.programs.stages);
  for (const State& s : training.planned.joined.graph.states) {  // averages of weights are where their parameters are
    if (auto at = owners.find(s.parameter); at != owners.end()) owners[s.name] = at->second;
  }
  PARTITA_ASSIGN_OR_RETURN(const PlannedStages planned,
                           shard_like(training.planned, graph, m.recipe, layout, m.batch, owners));
  PARTITA_ASSIGN_OR_RETURN(
      const LocalPrograms programs,
      localize_stages({planned.joined, layout, Compression::kNone, owners}, PassUse::kEvaluation, run));
  CompiledEvaluation out;
  PARTITA_ASSIGN_OR_RETURN(std::vector<EmittedProgram> emitted,
                           emit_programs(programs.stages, target, EmitUntil::kCode, run));
  for (EmittedProgram& e : emitted) {
    out.programs.push_back(std::move(e.program));
    out.claims.push_back(std::move(e.claims));
  }
  out.serial = verifier::without_weights(std::move(graph));
  bound_inputs(out.serial, out.programs);
  return out;
}

}  // namespace partita
