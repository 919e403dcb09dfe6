#include "tools/calibrate/convolution_rates.h"

#include <algorithm>

#include "base/status.h"

namespace partita {

absl::Status measure_convolutions(KernelTimes& times, const ConvolutionSizes& sizes, DeviceProfile& device) {
  const Precision precision = sizes.dtype == DType::kF32 ? Precision::kFp32 : Precision::kBf16;
  const double peak = device.flops[static_cast<size_t>(precision)];
  auto share = [&](int64_t from, int64_t to, int64_t plane, int64_t stride) -> absl::StatusOr<double> {
    PARTITA_ASSIGN_OR_RETURN(double rate, times.convolution_rate({sizes.dtype, sizes.batch, from, to, plane, stride}));
    return rate / peak;
  };
  EfficiencyCurve by_channels, by_plane;
  for (int64_t channels : sizes.channels) {
    PARTITA_ASSIGN_OR_RETURN(double s, share(channels, channels, sizes.plane, 1));
    by_channels.points.emplace_back(channels, std::min(1.0, s));
  }
  const double usual = by_channels.at(static_cast<double>(sizes.usual));
  for (int64_t plane : sizes.planes) {
    PARTITA_ASSIGN_OR_RETURN(double s, share(sizes.usual, sizes.usual, plane, 1));
    by_plane.points.emplace_back(plane * plane, std::min(1.0, s / usual));
  }
  by_plane.points.emplace_back(sizes.plane * sizes.plane, 1);
  const int64_t plane = sizes.planes.back();
  PARTITA_ASSIGN_OR_RETURN(double strided, share(sizes.usual / 2, sizes.usual, plane, 2));
  device.convolution_strided = std::min(1.0, strided / (usual * by_plane.at(static_cast<double>(plane * plane))));
  device.convolution = std::move(by_channels), device.convolution_plane = std::move(by_plane);
  return absl::OkStatus();
}

}  // namespace partita
