// Tables of passes, and the driver that runs one. A pass is one free function from what it works on (a graph, the
// programs of all stages, …) to the same kind; a table is a literal array of them, each with the reason why it stands
// where it stands. Every table is dumped, timed, stopped and checked in the same way (pass_run.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "ir/pipeline/pass_run.h"

namespace partita {

// Which programs a pass is a part of: one of the first three, or a sum of them.
enum class PassUse : uint8_t {
  kTraining = 1,
  kEvaluation = 2,  // the loss alone
  kPrediction = 4,  // values of the model, without a loss
  kLoss = kTraining | kEvaluation,
  kInference = kEvaluation | kPrediction,
  kAll = kTraining | kInference,
};

// `Function`: absl::StatusOr<Unit>(const Unit& or Unit, Context&).
template <typename Function>
struct TablePass {
  std::string_view name;
  Function* function = nullptr;
  std::string_view reason;         // why it stands where it stands
  Phase phase = Phase::kImported;  // how far the graphs have come after it
  PassUse use = PassUse::kAll;
};

// The graphs of a unit, in order: what is dumped and checked. Units of other kinds have an overload beside them.
inline std::vector<const Graph*> graphs_of(const Graph& graph) { return {&graph}; }

// The passes of a table that one of the programs takes.
template <typename Function>
std::vector<TablePass<Function>> passes_for(std::span<const TablePass<Function>> table, PassUse use) {
  std::vector<TablePass<Function>> passes;
  for (const TablePass<Function>& pass : table) {
    if ((static_cast<int>(pass.use) & static_cast<int>(use)) != 0) passes.push_back(pass);
  }
  return passes;
}

// Runs the passes in order, up to the last one that `run` is asked for. `passes`: a range of TablePass. Errors are the
// passes' own and `run`'s.
template <typename Passes, typename Unit, typename Context>
absl::StatusOr<Unit> run_passes(const Passes& passes, Unit unit, Context& context, PassRun& run) {
  for (const auto& pass : passes) {
    if (run.stopped()) break;
    int64_t before = 0;
    for (const Graph* graph : graphs_of(unit)) before += static_cast<int64_t>(graph->nodes.size());
    const auto start = std::chrono::steady_clock::now();
    PARTITA_ASSIGN_OR_RETURN(unit, pass.function(std::move(unit), context));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    PARTITA_RETURN_IF_ERROR(run.passed(pass.name, pass.phase, took.count(), before, graphs_of(unit)));
  }
  return unit;
}

}  // namespace partita
