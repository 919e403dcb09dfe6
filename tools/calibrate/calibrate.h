// Measures this machine and describes it as devices, links and presets that plans can be made for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/planner/cluster/write_profile.h"
#include "tools/calibrate/rank_team.h"

namespace partita {

struct CalibrationRequest {
  std::vector<int> ranks;  // a device is measured for each: its cores are the machine's divided by it
  std::string runner;      // what the probes' bundles are made with
  // "sm_90": GPUs of that generation are measured, one for each rank. What is not, is taken from the built-in profile
  // `like`, or from the one that a GPU's name fits.
  std::string gpu, like;
  int rounds = TimingLimits().rounds;                                       // of each kernel and message, at most
  std::function<void(const std::string&)> say = [](const std::string&) {};  // what is being measured
};

struct Calibration {
  ProfileSet profiles;    // device, link and preset "local-N" for N ranks
  double noise = 0;       // mean over the kernels of median over shortest time, less 1
  double link_error = 0;  // mean error of the links' fits
};

// FailedPrecondition where GPUs are asked for and cannot be used, or are fewer than the ranks; InvalidArgument for a
// GPU that no built-in profile fits.
absl::StatusOr<Calibration> calibrate(const CalibrationRequest& request);

}  // namespace partita
