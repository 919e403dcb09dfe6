// The serial program of a bundle run by the reference evaluator (ir/graph/evaluate.h): node by node, in double
// precision, by the ops' definitions; what has 16 bits is rounded to them. It shares no code with code generation,
// kernels or the executor; samples and first values are the runtime's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "runtime/data/data_config.h"
#include "runtime/program/program.h"

namespace partita {

struct ReferenceRun {
  std::vector<double> losses, rates, norms;              // of each step; none where the program has no such output
  std::map<std::string, std::vector<double>> states;     // after the last step, by name
  std::map<std::string, std::vector<double>> gradients;  // of the first step, where the program keeps them
};

// About the seconds that so many steps take, from the nodes' operations and elements.
double reference_seconds(const Graph& serial, int64_t micro_batches, int64_t steps);

// Rounds what a node makes to its type. 16 bits: to the nearest number, and 32 bits are as they are; with a source of
// random words, all types: up or down, the nearer number the more likely, which is a sample of what rounding may do.
void round_values(Tensor& values, const std::function<uint64_t()>& random);

// `program`: one rank's of the same graph, for how its inputs are cut. `first`: the states' first values by name; one
// that is missing is zero. `draw`: of other rounding; 0: none. The data's errors.
absl::StatusOr<ReferenceRun> run_reference(const Graph& serial, const runtime::Program& program,
                                           const runtime::DataConfig& data,
                                           const std::map<std::string, std::vector<double>>& first, int64_t steps,
                                           size_t draw);

}  // namespace partita
