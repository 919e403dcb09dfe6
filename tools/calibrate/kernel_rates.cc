// The peak is the best rate of any square product; each curve is what one size costs while the others are large:
//
//   rate(m, n, k) = peak * matrix(k) * matrix_rows(m) * matrix_columns(n)
#include "tools/calibrate/kernel_rates.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "tools/calibrate/bound_kernel.h"

namespace partita {
namespace {

using runtime::Params;
using runtime::Step;
using Shape = std::vector<int64_t>;

// A machine that others use too is slow for seconds at a time: all is measured so often, apart.
constexpr int kPasses = 3;

class KernelRates {
 public:
  KernelRates(const RankTeam& team, DeviceProfile& device) : team_(team), d_(device) { team_.most_seconds /= kPasses; }

  absl::StatusOr<double> measure() {
    for (int pass = 0; pass < kPasses; ++pass) {
      PARTITA_RETURN_IF_ERROR(matrices());
      PARTITA_RETURN_IF_ERROR(convolutions());
      PARTITA_RETURN_IF_ERROR(attention());
    }
    return noise_ / timings_;
  }

 private:
  absl::StatusOr<double> seconds(const Step& step) {
    std::vector<Shape> key;
    for (const runtime::Operand& o : step.operands) key.push_back(o.shape);
    int threads = team_.threads;
    PARTITA_ASSIGN_OR_RETURN(Timing t, team_.time([&](int, runtime::Communicator*) -> absl::StatusOr<RankWork> {
      PARTITA_ASSIGN_OR_RETURN(auto kernel, BoundKernel::make(step, threads));
      return RankWork([kernel] {
        kernel->run();
        return absl::OkStatus();
      });
    }));
    noise_ += t.noise, ++timings_;
    // Of a training step's kernels few meet what the shortest round met: the usual one counts.
    std::vector<double>& usual = usual_[{step.name, step.operands[0].dtype, std::move(key)}];
    usual.push_back(t.seconds * (1 + t.noise));
    std::sort(usual.begin(), usual.end());
    return usual[(usual.size() - 1) / 2];
  }

  absl::StatusOr<double> product_rate(DType dtype, int64_t m, int64_t n, int64_t k) {
    PARTITA_ASSIGN_OR_RETURN(double s, seconds(library_step("matmul", dtype, {{m, k}, {k, n}}, {{m, n}})));
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / s;
  }

  absl::Status matrices() {
    constexpr int64_t kLarge = 1024;
    constexpr int64_t kSizes[] = {16, 64, 256, 1024, 4096};
    double peak = 0;
    EfficiencyCurve* curves[] = {&d_.matrix, &d_.matrix_rows, &d_.matrix_columns};
    std::array<std::vector<std::pair<double, double>>, 3> rates;
    for (size_t axis = 0; axis < 3; ++axis) {
      for (int64_t size : kSizes) {
        int64_t m = axis == 1 ? size : kLarge, n = axis == 2 ? size : kLarge, k = axis == 0 ? size : kLarge;
        PARTITA_ASSIGN_OR_RETURN(double rate, product_rate(DType::kF32, m, n, k));
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
      PARTITA_ASSIGN_OR_RETURN(double rate, product_rate(dtype, kLarge, kLarge, kLarge));
      d_.flops[static_cast<size_t>(precision)] = rate / d_.matrix.at(kLarge);
    }
    // A product of one element is all overhead.
    PARTITA_ASSIGN_OR_RETURN(d_.launch_seconds,
                             seconds(library_step("matmul", DType::kF32, {{1, 1}, {1, 1}}, {{1, 1}})));
    return absl::OkStatus();
  }

  // A convolution with windows of 3 x 3 and its two gradients, relative to the peak. `plane`: the result's edge.
  absl::StatusOr<double> convolution_rate(int64_t from, int64_t to, int64_t plane, int64_t stride) {
    constexpr int64_t kBatch = 8;
    const Shape x = {kBatch, from, plane * stride, plane * stride}, y = {kBatch, to, plane, plane},
                w = {to, from, 3, 3};
    const Params params = {
        {"strides", Shape{stride, stride}}, {"pads_low", Shape{1, 1}}, {"pads_high", Shape{2 - stride, 2 - stride}}};
    double all = 0;
    for (const Step& step : {library_step("conv", DType::kF32, {x, w}, {y}, params),
                             library_step("conv_grad_data", DType::kF32, {y, w}, {x}, params),
                             library_step("conv_grad_weight", DType::kF32, {y, x}, {w}, params)}) {
      PARTITA_ASSIGN_OR_RETURN(double s, seconds(step));
      all += s;
    }
    double points = 9.0 * kBatch * plane * plane * from * to;  // of one pass, padding included
    return 3 * 2 * points / all / d_.flops[0];
  }

  absl::Status convolutions() {
    constexpr int64_t kLarge = 16, kChannels = 256;  // of a plane's edge; where others vary
    d_.convolution.points.clear(), d_.convolution_plane.points.clear();
    for (int64_t channels : {16, 64, 128, 256, 512}) {
      PARTITA_ASSIGN_OR_RETURN(double rate, convolution_rate(channels, channels, kLarge, 1));
      d_.convolution.points.emplace_back(channels, std::min(1.0, rate));
    }
    const double large = d_.convolution.at(kChannels);
    for (int64_t plane : {2, 4, 8}) {
      PARTITA_ASSIGN_OR_RETURN(double rate, convolution_rate(kChannels, kChannels, plane, 1));
      d_.convolution_plane.points.emplace_back(plane * plane, std::min(1.0, rate / large));
    }
    d_.convolution_plane.points.emplace_back(kLarge * kLarge, 1);
    constexpr int64_t kStrided = 8;
    PARTITA_ASSIGN_OR_RETURN(double rate, convolution_rate(kChannels / 2, kChannels, kStrided, 2));
    d_.convolution_strided = std::min(1.0, rate / (large * d_.convolution_plane.at(kStrided * kStrided)));
    return absl::OkStatus();
  }

  absl::Status attention() {
    constexpr int64_t kBatch = 2, kHeads = 4, kLength = 256;
    double forward_at_64 = 1, backward_at_64 = 1;
    d_.attention_flash.points.clear(), d_.attention_math.points.clear();
    for (int64_t size : {32, 64, 128}) {
      const Shape q = {kBatch, kHeads, kLength, size}, lse = {kBatch, kHeads, kLength};
      // Causal, as in most models that are trained; pairs that it hides are not counted.
      double flops = 4.0 * kBatch * kHeads * (kLength * (kLength + 1) / 2) * static_cast<double>(size);
      const Params causal = {{"causal", int64_t{1}}};
      PARTITA_ASSIGN_OR_RETURN(double forward,
                               seconds(library_step("attention", DType::kF32, {q, q, q}, {q, lse}, causal)));
      PARTITA_ASSIGN_OR_RETURN(double backward, seconds(library_step("attention_grad", DType::kF32,
                                                                     {q, q, q, q, q, lse}, {q, q, q}, causal)));
      double rate = flops / forward;
      if (size == 64) forward_at_64 = rate, backward_at_64 = 2.5 * flops / backward;
      d_.attention_flash.points.emplace_back(size, std::min(1.0, rate / d_.flops[0]));
    }
    d_.attention_backward = backward_at_64 / forward_at_64;
    // Without the fused kernel attention is two products of a head's size.
    for (int64_t size : {32, 64, 128})
      d_.attention_math.points.emplace_back(size, d_.matrix.at(static_cast<double>(size)));
    return absl::OkStatus();
  }

  RankTeam team_;
  DeviceProfile& d_;
  std::map<std::tuple<std::string, DType, std::vector<Shape>>, std::vector<double>> usual_;  // by pass
  double noise_ = 0, timings_ = 0;
};

}  // namespace

absl::StatusOr<double> measure_kernels(const RankTeam& team, DeviceProfile& device) {
  return KernelRates(team, device).measure();
}

}  // namespace partita
