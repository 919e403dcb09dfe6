// Corrects a profile from a measured run.
#pragma once

#include <string>
#include <vector>

#include "partitioner/planner/cluster/cluster.h"
#include "tools/calibrate/class_time.h"
#include "tools/calibrate/measured_groups.h"

namespace partita {

struct Correction {
  std::string constant;  // "flops.fp32", "link memory: bandwidth"; "slow: flops.fp32" where there are several groups
  double before = 0, after = 0;
  std::string why;  // "matrix products took 12.3 ms, predicted 10.1 ms"
};

struct Refined {
  Cluster cluster;  // with corrected devices and links
  std::vector<Correction> corrections;
};

// `runs`: of each group of devices, in `layout`. A class of work is corrected where it takes more than a hundredth of
// the measured step and the model counts some of it:
//   matrix products -> the peak of the run's precision (the curves that are told of it keep their absolute rates)
//   convolutions, attention -> their curves
//   update -> bandwidth; memory-bound -> software.memory_traffic
//   communication -> bandwidth and latency of the links (not in a pipeline, where a trace shows one stage's waits, nor
//   where groups wait for each other)
//   between the steps -> software.step_seconds
Refined refine(const Problem& problem, const Layout& layout, const std::vector<MeasuredGroup>& runs);

}  // namespace partita
