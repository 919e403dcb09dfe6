// Peaks are what the best product of a precision reached; the tiles that products are cut into, and the multiprocessors
// that the last of them leave idle, are the cost model's own and are taken out of the times.
#include "tools/calibrate/gpu_rates.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/cat.h"
#include "base/status.h"
#include "partitioner/planner/rates/kernel_time.h"
#include "tools/calibrate/bound_kernel.h"
#include "tools/calibrate/kernel_times.h"

namespace partita {
namespace {

constexpr DType kHalf = DType::kBF16;

// What is timed of a device's memory: two pieces of it, or of it and the host's.
absl::StatusOr<std::byte*> place_for_copy(runtime::Device& device, int64_t bytes, bool on_host) {
  return on_host ? device.allocate_on_host(bytes) : device.allocate(bytes);
}

class GpuRates {
 public:
  GpuRates(const RankTeam& team, const GpuSizes& sizes, DeviceProfile& device)
      : times_(team), sizes_(sizes), d_(device), before_(device) {}

  absl::StatusOr<double> measure(const std::function<void(const std::string&)>& say) {
    bool convolves = true;
    for (int pass = 0; pass < KernelTimes::kPasses; ++pass) {
      PARTITA_RETURN_IF_ERROR(launches());
      PARTITA_RETURN_IF_ERROR(matrices());
      PARTITA_RETURN_IF_ERROR(attention());
      PARTITA_RETURN_IF_ERROR(memory());
      if (!convolves) continue;
      const absl::Status status = measure_convolutions(times_, sizes_.convolutions, d_);
      convolves = !absl::IsFailedPrecondition(status);
      if (!convolves) {
        say(cat("no convolutions: ", status.message()));
      } else {
        PARTITA_RETURN_IF_ERROR(status);
      }
    }
    return times_.noise();
  }

 private:
  // In a graph, as training launches them.
  absl::Status launches() {
    const runtime::Step step = library_step("matmul", kHalf, {{8, 8}, {8, 8}}, {{8, 8}});
    PARTITA_ASSIGN_OR_RETURN(
        double all, times_.seconds("launches", [&](const RankPlace& place) -> absl::StatusOr<RankWork> {
          PARTITA_ASSIGN_OR_RETURN(auto kernel, BoundKernel::make(step, place));
          return RankWork([kernel, device = place.device, number = place.device->replays(1), n = sizes_.launches] {
            return device->replay(number, [&] {
              for (int64_t k = 0; k < n; ++k) kernel->run();
              return absl::OkStatus();
            });
          });
        }));
    d_.launch_seconds = all / static_cast<double>(sizes_.launches);
    return absl::OkStatus();
  }

  // Of a product as long as all multiprocessors are busy.
  absl::StatusOr<double> full_rate(Precision precision, int64_t k) {
    const DType dtype = precision == Precision::kBf16   ? DType::kBF16
                        : precision == Precision::kFp16 ? DType::kF16
                                                        : DType::kF32;
    const int64_t m = sizes_.large;
    PARTITA_ASSIGN_OR_RETURN(double rate, times_.product_rate(dtype, m, m, k, precision == Precision::kTf32));
    DeviceProfile cut;  // tiles alone
    cut.tiles = d_.tiles, cut.processors = d_.processors, cut.flops = {1, 1, 1, 1, 1};
    cut.bandwidth = std::numeric_limits<double>::infinity();
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(m) * static_cast<double>(k);
    const double size = static_cast<double>(m);
    const double waits =
        matrix_time(cut, precision, 1, size, size, static_cast<double>(k), static_cast<double>(dtype_size(dtype))) /
        flops;
    return waits / std::max(1 / rate - d_.launch_seconds / flops, 0.1 / rate);
  }

  absl::Status matrices() {
    std::vector<std::pair<double, double>> rates;
    double peak = 0;
    for (int64_t k : sizes_.contractions) {
      PARTITA_ASSIGN_OR_RETURN(double rate, full_rate(Precision::kBf16, k));
      rates.emplace_back(k, rate);
      peak = std::max(peak, rate);
    }
    d_.matrix.points.clear();
    for (auto [k, rate] : rates) d_.matrix.points.emplace_back(k, rate / peak);
    const int64_t usual = sizes_.large;
    for (Precision p : {Precision::kFp32, Precision::kTf32, Precision::kFp16}) {
      PARTITA_ASSIGN_OR_RETURN(double rate, full_rate(p, usual));
      d_.flops[static_cast<size_t>(p)] = rate / d_.matrix.at(static_cast<double>(usual));
    }
    d_.flops[static_cast<size_t>(Precision::kBf16)] = peak;
    // Not measured: as much faster than bf16 as the data sheet says.
    const double bf16 = before_.flops[static_cast<size_t>(Precision::kBf16)];
    if (bf16 > 0)
      d_.flops[static_cast<size_t>(Precision::kFp8)] =
          before_.flops[static_cast<size_t>(Precision::kFp8)] * peak / bf16;
    return absl::OkStatus();
  }

  absl::Status attention() {
    const double peak = d_.flops[static_cast<size_t>(Precision::kBf16)];
    // What is not measured keeps its rate, which is told relative to the peak.
    d_.attention_math = before_.attention_math;
    for (auto& [size, share] : d_.attention_math.points)
      share = std::min(1.0, share * before_.flops[static_cast<size_t>(Precision::kBf16)] / peak);
    d_.attention_flash.points.clear();
    double ratios = 0;
    for (int64_t size : sizes_.head_sizes) {
      PARTITA_ASSIGN_OR_RETURN(KernelTimes::AttentionRates rates,
                               times_.attention_rates({kHalf, sizes_.batch, sizes_.heads, sizes_.length, size}));
      d_.attention_flash.points.emplace_back(size, std::min(1.0, rates.forward / peak));
      ratios += rates.backward / rates.forward;
    }
    d_.attention_backward = ratios / static_cast<double>(sizes_.head_sizes.size());
    return absl::OkStatus();
  }

  // Copies of `bytes`: bytes/s, without the launch.
  absl::StatusOr<double> copy_rate(int64_t bytes, bool from_host) {
    PARTITA_ASSIGN_OR_RETURN(
        double s, times_.seconds(
                      cat(from_host ? "up " : "copy ", bytes), [&](const RankPlace& place) -> absl::StatusOr<RankWork> {
                        runtime::Device* device = place.device;
                        PARTITA_ASSIGN_OR_RETURN(std::byte * from, place_for_copy(*device, bytes, from_host));
                        PARTITA_ASSIGN_OR_RETURN(std::byte * to, place_for_copy(*device, bytes, false));
                        return RankWork([=] { return device->copy(to, from, bytes); });
                      }));
    return static_cast<double>(bytes) / std::max(s - d_.launch_seconds, 0.1 * s);
  }

  absl::Status memory() {
    std::vector<std::pair<double, double>> rates;
    d_.bandwidth = 0;
    for (int64_t bytes : sizes_.copies) {
      PARTITA_ASSIGN_OR_RETURN(double rate, copy_rate(bytes / 2, false));
      rates.emplace_back(bytes, 2 * rate);
      d_.bandwidth = std::max(d_.bandwidth, 2 * rate);
    }
    d_.memory.points.clear();
    for (auto [bytes, rate] : rates) d_.memory.points.emplace_back(bytes, rate / d_.bandwidth);
    PARTITA_ASSIGN_OR_RETURN(d_.host_bandwidth, copy_rate(sizes_.copies.back() / 4, true));
    return absl::OkStatus();
  }

  KernelTimes times_;
  const GpuSizes& sizes_;
  DeviceProfile& d_;
  const DeviceProfile before_;
};

}  // namespace

absl::StatusOr<double> measure_gpu(const RankTeam& team, const GpuSizes& sizes, DeviceProfile& device,
                                   const std::function<void(const std::string&)>& say) {
  return GpuRates(team, sizes, device).measure(say);
}

}  // namespace partita
