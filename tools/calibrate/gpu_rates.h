// Rates of a GPU's library kernels, copies and launches, as parts of a device profile.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "partitioner/planner/cluster/device_profile.h"
#include "tools/calibrate/convolution_rates.h"
#include "tools/calibrate/rank_team.h"

namespace partita {

struct GpuSizes {
  int64_t large = 4096;  // of a product, where K varies
  std::vector<int64_t> contractions = {64, 128, 512, 1024, 4096, 16384};
  int64_t batch = 4, heads = 16, length = 2048;  // of attention
  std::vector<int64_t> head_sizes = {32, 64, 128};
  std::vector<int64_t> copies = {10'000, 1'000'000, 16'000'000, 256'000'000};  // bytes read and written together
  int64_t launches = 64;                                                       // in one graph
  ConvolutionSizes convolutions = {.dtype = DType::kBF16,
                                   .batch = 64,
                                   .plane = 28,
                                   .usual = 256,
                                   .channels = {64, 128, 256, 512},
                                   .planes = {7, 14}};
};

// Sets flops, matrix, convolution*, attention_flash, attention_backward, bandwidth, memory, launch_seconds and
// host_bandwidth of `device`, whose tiles and processors say how products are cut. What cuDNN would compute keeps its
// rates where cuDNN is not there, and `say` is told so. Returns the mean noise of the timings.
absl::StatusOr<double> measure_gpu(const RankTeam& team, const GpuSizes& sizes, DeviceProfile& device,
                                   const std::function<void(const std::string&)>& say);

}  // namespace partita
