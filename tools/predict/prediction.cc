#include "tools/predict/prediction.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "codegen/emit_program.h"
#include "partitioner/layout/batch_plan.h"
#include "partitioner/localize/whole_program.h"
#include "passes/pipeline.h"
#include "passes/rewrite/clean_up.h"
#include "tools/flow/bound_inputs.h"

namespace partita {
namespace {

std::vector<std::string> output_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const GraphOutput& o : graph.outputs) names.push_back(o.name);
  return names;
}

ValueId named(const Graph& graph, const std::string& name) {
  for (const GraphOutput& o : graph.outputs) {
    if (o.name == name) return o.value;
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].name == name) return static_cast<ValueId>(v);
  }
  return kNoValue;
}

// The graph whose outputs are those values: before the passes, which leave a graph's outputs as they are.
absl::StatusOr<Graph> handing_out(Graph graph, const std::vector<std::string>& values) {
  std::vector<GraphOutput> outputs;
  for (const std::string& name : values) {
    const ValueId v = named(graph, name);
    if (v == kNoValue)
      return absl::NotFoundError(cat("the model has no value ", quote(name), "; its outputs are ",
                                     quote_list(output_names(graph)), ", and every node's result has its ONNX name"));
    outputs.push_back({name, v});
  }
  graph.outputs = std::move(outputs);
  return graph;
}

// The scores that the model's own loss is made of.
absl::StatusOr<Graph> handing_out_scores(Graph graph) {
  std::vector<ValueId> scores;
  for (const Node& node : graph.nodes) {
    if (node.op->name == "cross_entropy" && std::count(scores.begin(), scores.end(), node.inputs[0]) == 0)
      scores.push_back(node.inputs[0]);
  }
  if (scores.size() != 1)
    return absl::InvalidArgumentError(
        cat("expected one cross-entropy in the model's loss, found ", scores.size(),
            "; say which value has the scores of the next token, --value NAME: the model's outputs are ",
            quote_list(output_names(graph))));
  graph.outputs = {{"scores", scores[0]}};
  return graph;
}

}  // namespace

absl::StatusOr<ForwardProgram> compile_prediction(ModelSource& source, int64_t samples,
                                                  std::vector<std::string> values) {
  PARTITA_ASSIGN_OR_RETURN(auto model, source.import(samples, /*training=*/false));
  PARTITA_ASSIGN_OR_RETURN(const int64_t exported, samples_of_run(model->graph));
  if (exported != samples) {
    PARTITA_ASSIGN_OR_RETURN(model, source.resized(model, samples));
  }
  for (const LossRecipe& loss : source.recipe().loss) {
    if (values.empty() && loss.kind != LossKind::kOutput)
      values = {loss.output.empty() ? model->graph.outputs[0].name : loss.output};
  }
  Graph graph = model->graph;
  if (!values.empty()) {
    PARTITA_ASSIGN_OR_RETURN(graph, handing_out(std::move(graph), values));
  }
  const PassContext context{.recipe = source.recipe(), .training = {}};
  PassRun run;
  PARTITA_ASSIGN_OR_RETURN(graph, run_passes(graph_passes(PassUse::kPrediction), std::move(graph), context, run));
  if (values.empty()) {
    PARTITA_ASSIGN_OR_RETURN(graph, handing_out_scores(std::move(graph)));
    PARTITA_ASSIGN_OR_RETURN(graph, remove_dead_nodes(graph, context));
  }
  for (State& s : graph.states) s.next = kNoValue;
  ForwardProgram out;
  out.weights = weights_of(graph);
  std::vector<runtime::Program> programs(1);
  PARTITA_ASSIGN_OR_RETURN(programs[0], emit_program(whole_program(graph, samples, 1)));
  bound_inputs(graph, programs);
  out.program = std::move(programs[0]);
  return out;
}

}  // namespace partita
