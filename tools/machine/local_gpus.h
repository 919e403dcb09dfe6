// The GPUs of this machine, as what plans are made for.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/planner/cluster/device_profile.h"

namespace partita {

struct LocalGpus {
  int count = 0;
  std::string name;          // of the first, as NVML tells it: "NVIDIA H100 80GB HBM3"
  std::string architecture;  // "sm_90"
  bool nvlink = false;       // else PCIe
};

// Those that this process may use (CUDA_VISIBLE_DEVICES), as far as they are like the first one. None where there is no
// NVIDIA driver. FailedPrecondition where the driver is too old to tell their architecture.
absl::StatusOr<LocalGpus> find_local_gpus();

// The name of the built-in profile whose parts ("H100", "80GB") are all in a GPU's name ("NVIDIA H100 80GB HBM3"), and
// of several the one with most; empty where there is none.
std::string profile_for(const std::string& gpu_name, const std::vector<std::string>& profiles);

// A cluster.yaml of them. NotFound where no profile of the library fits.
absl::StatusOr<std::string> cluster_of_gpus(const LocalGpus& gpus, const ProfileLibrary& library);

}  // namespace partita
