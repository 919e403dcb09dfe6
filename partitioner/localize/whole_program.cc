#include "partitioner/localize/whole_program.h"

#include <utility>

namespace partita {

LocalProgram whole_program(Graph graph, int64_t samples_per_step, int64_t micro_batches) {
  LocalProgram local;
  const auto place = [&](ValueId v, std::vector<PlacedTensor>& into) {
    const Shape& shape = graph.type(v).shape;
    into.push_back({shape, Sharding::replicated(shape)});
  };
  for (const GraphInput& in : graph.inputs) place(in.value, local.inputs);
  for (const State& s : graph.states) place(s.value, local.states);
  for (const GraphOutput& o : graph.outputs) place(o.value, local.outputs);
  local.graph = std::move(graph);
  local.samples_per_step = samples_per_step;
  local.micro_batches = micro_batches;
  return local;
}

}  // namespace partita
