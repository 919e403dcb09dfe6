// A small model that is compiled and trained here, to measure what only whole steps show: generated kernels, the
// optimizer, and what a step costs beside its kernels.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "frontend/generate/graph_writer.h"
#include "partitioner/planner/workload/workload.h"
#include "tools/calibrate/measured_run.h"

namespace partita {

struct Probe {
  std::string recipe;   // train.yaml
  int64_t samples = 1;  // of each rank
  int ranks = 1;
  int64_t steps = 8;
  std::string gpu;  // not empty: "sm_90", and a rank has a GPU
};

struct ProbeResult {
  MeasuredRun run;  // of rank 0; all ranks run the same at the same time
  // Of a step beside its kernels. GPUs are measured once more without a profile, which keeps launches apart.
  double gap_seconds = 0;
  Workload workload;
};

// Trains with data parallelism over the ranks, as threads of this process. `runner`: what bundles are made with.
absl::StatusOr<ProbeResult> run_probe(GraphWriter graph, const Probe& probe, const std::string& runner);

}  // namespace partita
