// The passes of code generation as one visible table: from a rank's graph to the graph that loop nests are made of.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/fp8_blocks.h"
#include "ir/pipeline/pass_table.h"
#include "partitioner/localize/local_program.h"

namespace partita {

// A rank's graph on its way to code, and what the verifier is to be told of its values.
struct PreparedGraph {
  Graph expanded;  // composites expanded, nothing else: claims are in terms of it
  Graph graph;     // as code sees it
  // For each value of `graph`, the value of `expanded` that it equals, perhaps turned() (runtime/program/claim.h); or
  // temporary(n): none, and told from others by n.
  std::vector<ValueId> same_as;
  std::map<ValueId, Fp8Rounding> roundings = {};  // of `expanded`; with CodeContext::fp8 alone

  ValueId turned(ValueId v) const { return v + static_cast<ValueId>(expanded.values.size()); }
  // The value of `expanded`, whichever way it lies.
  ValueId value(ValueId v) const { return v % static_cast<ValueId>(expanded.values.size()); }
  static ValueId temporary(ValueId n) { return -2 - n; }
  static bool is_temporary(ValueId v) { return v < kNoValue; }
  static ValueId number(ValueId temporary) { return -2 - temporary; }
};
struct PreparedGraphs {
  std::vector<PreparedGraph> stages;
};
std::vector<const Graph*> graphs_of(const PreparedGraphs& prepared);

struct CodeContext {
  const std::vector<LocalProgram>& programs;
  bool gpu = false;            // for a GPU, or for a host
  bool epilogues = false;      // a GPU's products do what follows them, where they can
  bool channels_last = false;  // a GPU's convolutions take their channels last, where they gain from it
  bool added_rows = false;     // a host's gradients of gathered rows are added to what they are summed with
  bool strict = false;         // sums in one order, on any ranks (CodeGraph::strict)
  bool fp8 = false;            // a GPU that multiplies fp8 numbers with scales of blocks
};

using CodePass = TablePass<absl::StatusOr<PreparedGraphs>(PreparedGraphs, const CodeContext&)>;
std::vector<CodePass> code_passes();

// The graphs of the programs, and what the passes make of them.
absl::StatusOr<PreparedGraphs> prepare_graphs(const CodeContext& context, PassRun& run);

}  // namespace partita
