// Measures this machine and describes it as devices, links and presets that plans can be made for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/profile_text.h"

namespace partita {

struct CalibrationRequest {
  std::vector<int> ranks;  // a device is measured for each: its cores are the machine's divided by it
  std::string runner;      // what the probes' bundles are made with
  std::function<void(const std::string&)> say = [](const std::string&) {};  // what is being measured
};

struct Calibration {
  ProfileSet profiles;    // device, link and preset "local-N" for N ranks
  double noise = 0;       // mean over the kernels of median over shortest time, less 1
  double link_error = 0;  // mean error of the links' fits
};

absl::StatusOr<Calibration> calibrate(const CalibrationRequest& request);

}  // namespace partita
