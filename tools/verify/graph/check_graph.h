// Whether a rank's graph computes the serial one. From the layouts of inputs and states that the program's interface
// states, the layout of every local value is derived: what a node leaves follows from the formula of the serial node
// that does the same to the same values, what a collective does from its definition. Nothing that the compiler found is
// read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "runtime/program/program.h"
#include "tools/verify/graph/fixed_sums.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {

struct GraphReport {
  int64_t values = 0, collectives = 0, states = 0, outputs = 0;
  std::vector<int> slice_axes;    // along which ranks run different micro-batches
  std::vector<IndexMap> layouts;  // per local value
};

// `local` is the graph of all ranks of `program`. Aborted: "STEP: value: expected …, found …" for the first node that
// is not what a serial node is, in the words of `place` (which tells a node's step). `fixed`: the order that
// sums are to have.
absl::StatusOr<GraphReport> check_graph(const SerialValues& serial, const Graph& local, const runtime::Program& program,
                                        const FixedSums& fixed, const std::function<std::string(NodeId)>& place);

}  // namespace partita::verifier
