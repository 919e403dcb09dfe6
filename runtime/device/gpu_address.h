// Where a GPU is, before it is opened.
#pragma once

#include <cstdint>
#include <optional>

namespace partita::runtime {

struct PciAddress {
  int domain = 0, bus = 0, device = 0;
};

// Of the GPU that CUDA gives this number in this process; none where there is no driver, or no such GPU. It may be what
// calls the driver first, for a run of several ranks or of one (cuda_environment.h).
std::optional<PciAddress> gpu_address(int number, bool several_ranks);

}  // namespace partita::runtime
