// How the samples of a step are divided over ranks that run different micro-batches.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "runtime/program/program.h"

namespace partita::verifier {

// A rank's m-th run of the graph is number m * count + sum of coordinate * stride of the step.
struct Slices {
  int64_t count = 1;
  std::vector<runtime::AxisStride> axes;
};

// From the placements of the data: their first dimension holds the samples of all ranks. Aborted where inputs differ,
// or the number of samples is not the step's.
absl::StatusOr<Slices> find_slices(const Graph& serial, const Graph& local, const runtime::Program& program);

// Adds the axis in time to the placement of an input: one micro-batch of a run begins `slice_samples` after the one
// before. False where no dimension steps so.
bool add_micro_slice_axis(runtime::Placement& placement, int64_t slice_samples, int axis);

// nullptr where there is none.
const GraphInput* input_named(const Graph& graph, const std::string& name, InputKind kind);

}  // namespace partita::verifier
