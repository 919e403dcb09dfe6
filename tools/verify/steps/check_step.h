// Checks of single steps and of a program's frame; see check_steps.cc.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "runtime/program/program.h"

namespace partita::verifier {

// What `term` is added to to make `sum`, or -1.
int added_to(const Graph& graph, const std::vector<ValueId>& storage, int sum, int term);

// A library step that has its operands and results with their channels last.
bool has_channels_last(const runtime::Step& step);

// Aborted where they differ: a library step's name and parameters from its node's; a collective's kind, group and
// reduction; the program's states, inputs and outputs from the graph's; the schedule from each segment once for each
// micro-batch, or once; the reduce segment is either.
absl::Status check_params(const Node& node, const runtime::Step& step, const std::string& epilogue);
absl::Status check_collective(const Graph& graph, const Node& node, const runtime::Step& step,
                              const runtime::Program& program);
absl::Status check_interface(const Graph& graph, const runtime::Program& program);
absl::Status check_schedule(const runtime::Program& program);

}  // namespace partita::verifier
