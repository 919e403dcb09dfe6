#include "tools/verify/check_evaluation.h"

#include <algorithm>

#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/layout/index_map.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

absl::Status check_state(const runtime::ProgramState& s, const runtime::Program& training) {
  auto at = std::find_if(training.states.begin(), training.states.end(),
                         [&](const runtime::ProgramState& t) { return t.name == s.name; });
  if (at == training.states.end()) return differs("expected it among the states of training there, found none");
  if (at->operand.dtype != s.operand.dtype || at->operand.shape != s.operand.shape)
    return differs("expected ", dtype_name(at->operand.dtype), to_string(at->operand.shape), " as in training, found ",
                   dtype_name(s.operand.dtype), to_string(s.operand.shape));
  if (!same_placement(at->placement, s.placement))
    return differs("expected the part that training has on each rank, found another");
  return absl::OkStatus();
}

}  // namespace

absl::Status check_shared_states(const ProgramSet& training, const ProgramSet& evaluation) {
  for (const State& s : evaluation.serial.states) {
    if (s.kind != StateKind::kAccumulator && s.next != kNoValue && s.next != s.value)
      return differs("state ", quote(s.name), ": expected evaluation to leave it as it is, found that it changes it");
  }
  if (evaluation.programs.size() != training.programs.size())
    return differs("expected ", training.programs.size(), " programs as in training, found ",
                   evaluation.programs.size());
  for (size_t k = 0; k < evaluation.programs.size(); ++k) {
    const runtime::Program &mine = evaluation.programs[k].program, &theirs = training.programs[k].program;
    if (mine.mesh != theirs.mesh) return differs("expected the mesh of training, found another");
    if (mine.target != theirs.target)
      return differs("expected target ", quote(theirs.target), " as in training, found ", quote(mine.target));
    for (const runtime::ProgramState& s : mine.states) {
      if (s.kind == StateKind::kAccumulator) continue;  // cleared before each batch, and nobody else's
      absl::Status status = check_state(s, theirs);
      if (!status.ok()) return differs("state ", quote(s.name), ", program ", k, ": ", status.message());
    }
  }
  return absl::OkStatus();
}

int64_t random_nodes(const Graph& graph) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    if (node.op->scalar == nullptr) return false;
    auto types = input_types(graph, node);
    const ScalarFunction f = scalar_function(*node.op, {node.attrs, types});
    return std::any_of(f.nodes.begin(), f.nodes.end(), [](const auto& x) { return x.op == ScalarOp::kPhilox; });
  });
}

}  // namespace partita::verifier
