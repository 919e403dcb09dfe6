// Whether a program's steps compute its graph: the schedule is run through with each byte of memory holding the name of
// the value that was written there, so every operand is seen to be the value of the right micro-batch, alive, untouched
// by what runs asynchronously, and every state and output is seen to be written. A generated kernel is proved to
// compute its results from its operands by the nest that it was made from (tools/verify/kernels).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/fp8_blocks.h"
#include "ir/graph/graph.h"
#include "ir/nest/nest_text.h"
#include "runtime/program/program.h"
#include "tools/verify/bundle/claims.h"

namespace partita::verifier {

struct StepsReport {
  int64_t steps = 0, operands = 0, collectives = 0;
};

// Aborted: "step 12 'matmul' ('MatMul …'), micro-batch 0: operand 1: expected …, found …" for the first fault.
// `roundings`: of the graph's values (ir/graph/fp8_blocks.h).
absl::StatusOr<StepsReport> check_steps(const Graph& graph, const runtime::Program& program,
                                        const std::vector<Claim>& claims, const KernelNests& nests,
                                        const std::map<ValueId, Fp8Rounding>& roundings = {});

// The first step that computes a node, or -1; for messages.
std::vector<int> steps_of_nodes(const Graph& graph, const std::vector<Claim>& claims);
std::string describe_step(const runtime::Program& program, int step);

}  // namespace partita::verifier
