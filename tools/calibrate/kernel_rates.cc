// The peak is the best rate of any square product; each curve is what one size costs while the others are large:
//
//   rate(m, n, k) = peak * matrix(k) * matrix_rows(m) * matrix_columns(n)
#include "tools/calibrate/kernel_rates.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/status.h"
#include "tools/calibrate/bound_kernel.h"
#include "tools/calibrate/convolution_rates.h"
#include "tools/calibrate/kernel_times.h"

namespace partita {
namespace {

const ConvolutionSizes kConvolutions{.dtype = DType::kF32,
                                     .batch = 8,
                                     .plane = 16,
                                     .usual = 256,
                                     .channels = {16, 64, 128, 256, 512},
                                     .planes = {2, 4, 8}};

class HostKernels {
 public:
  HostKernels(const RankTeam& team, DeviceProfile& device) : times_(team), d_(device) {}

  absl::StatusOr<double> measure() {
    for (int pass = 0; pass < KernelTimes::kPasses; ++pass) {
      PARTITA_RETURN_IF_ERROR(matrices());
      PARTITA_RETURN_IF_ERROR(measure_convolutions(times_, kConvolutions, d_));
      PARTITA_RETURN_IF_ERROR(attention());
    }
    return times_.noise();
  }

 private:
  absl::Status matrices() {
    constexpr int64_t kLarge = 1024;
    constexpr int64_t kSizes[] = {16, 64, 256, 1024, 4096};
    double peak = 0;
    EfficiencyCurve* curves[] = {&d_.matrix, &d_.matrix_rows, &d_.matrix_columns};
    std::array<std::vector<std::pair<double, double>>, 3> rates;
    for (size_t axis = 0; axis < 3; ++axis) {
      for (int64_t size : kSizes) {
        int64_t m = axis == 1 ? size : kLarge, n = axis == 2 ? size : kLarge, k = axis == 0 ? size : kLarge;
        PARTITA_ASSIGN_OR_RETURN(double rate, times_.product_rate(DType::kF32, m, n, k));
        rates[axis].emplace_back(size, rate);
        peak = std::max(peak, rate);
      }
    }
    // Rows and columns are told relative to the product that has kLarge of all three.
    double common = 0;
    for (const auto& list : rates) common = std::max(common, list[3].second);
    for (size_t axis = 0; axis < 3; ++axis) {
      curves[axis]->points.clear();
      for (auto [size, rate] : rates[axis])
        curves[axis]->points.emplace_back(size, std::min(1.0, rate / (axis == 0 ? peak : common)));
    }
    d_.tiles = {{1, 1, 1}};
    d_.processors = 1;
    d_.flops = {peak, peak, 0, 0};
    for (auto [precision, dtype] : {std::pair{Precision::kBf16, DType::kBF16}, {Precision::kFp16, DType::kF16}}) {
      PARTITA_ASSIGN_OR_RETURN(double rate, times_.product_rate(dtype, kLarge, kLarge, kLarge));
      d_.flops[static_cast<size_t>(precision)] = rate / d_.matrix.at(kLarge);
    }
    // A product of one element is all overhead.
    PARTITA_ASSIGN_OR_RETURN(d_.launch_seconds,
                             times_.seconds(library_step("matmul", DType::kF32, {{1, 1}, {1, 1}}, {{1, 1}})));
    return absl::OkStatus();
  }

  absl::Status attention() {
    constexpr int64_t kBatch = 2, kHeads = 4, kLength = 256;
    d_.attention_flash.points.clear(), d_.attention_math.points.clear();
    for (int64_t size : {32, 64, 128}) {
      PARTITA_ASSIGN_OR_RETURN(KernelTimes::AttentionRates rates,
                               times_.attention_rates({DType::kF32, kBatch, kHeads, kLength, size}));
      d_.attention_flash.points.emplace_back(size, std::min(1.0, rates.forward / d_.flops[0]));
      if (size == 64) d_.attention_backward = rates.backward / rates.forward;
    }
    // Without the fused kernel attention is two products of a head's size.
    for (int64_t size : {32, 64, 128})
      d_.attention_math.points.emplace_back(size, d_.matrix.at(static_cast<double>(size)));
    return absl::OkStatus();
  }

  KernelTimes times_;
  DeviceProfile& d_;
};

}  // namespace

absl::StatusOr<double> measure_host_kernels(const RankTeam& team, DeviceProfile& device) {
  return HostKernels(team, device).measure();
}

}  // namespace partita
