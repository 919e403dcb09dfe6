// The passes of the forward side as one visible table, and the driver that runs a table of passes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/verify.h"
#include "passes/rewrite/pass.h"

namespace partita {

struct Pass {
  std::string_view name;
  absl::StatusOr<Graph> (*function)(const Graph&, const PassContext&);
  std::string_view reason;         // why it stands where it stands
  Phase phase = Phase::kImported;  // how far the graph has come after it
};

// What one pass took and did.
struct PassTime {
  std::string name;
  double seconds = 0;
  int64_t nodes_before = 0, nodes_after = 0;
};

struct PassOptions {
  std::string dump_folder;  // not empty: "NN-name.txt" after every pass that changed the graph ("00-start.txt" before
                            // the first); made where missing
  std::string stop_after;   // not empty: the name of the last pass to run; of passes with one name "NAME" is the first,
                            // "NAME#2" the second
  bool verify = true;       // check the graph after every pass
  std::vector<PassTime>* times = nullptr;  // where to add what each pass took
};

// From an imported forward graph to a training program: clean-up, recognition, loss, blocks, backward, optimizer.
std::span<const Pass> training_pipeline();
// The same up to the loss, for forward-only programs (evaluation, export).
std::span<const Pass> forward_pipeline();
// From a forward graph imported for inference to an evaluation program.
std::vector<Pass> evaluation_pipeline();

// Runs the passes in order. Errors are the passes' own; InvalidArgument for an unknown `stop_after` (names the known
// ones) or a folder that cannot be written; Internal, naming the pass, where a pass leaves an unsound graph.
absl::StatusOr<Graph> run_passes(std::span<const Pass> passes, Graph graph, PassContext& context,
                                 const PassOptions& options = {});

// The table of --time-passes, one line a pass.
std::string format_pass_times(std::span<const PassTime> times);

}  // namespace partita
