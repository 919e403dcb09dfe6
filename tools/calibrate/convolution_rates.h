// Rates of convolutions and their gradients, as parts of a device profile.
#pragma once

#include <vector>

#include "partitioner/planner/cluster/device_profile.h"
#include "tools/calibrate/kernel_times.h"

namespace partita {

struct ConvolutionSizes {
  DType dtype;
  int64_t batch, plane, usual;    // samples; edge of a plane and channels where others vary
  std::vector<int64_t> channels;  // with `usual`
  std::vector<int64_t> planes;    // edges below `plane`; the last one with strides too
};

// Sets convolution, convolution_plane and convolution_strided of `device`, relative to its flops of `sizes.dtype`.
absl::Status measure_convolutions(KernelTimes& times, const ConvolutionSizes& sizes, DeviceProfile& device);

}  // namespace partita
