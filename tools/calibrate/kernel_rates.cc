// The peak is the best rate of any square product; each curve is what one size costs while the others are large:
//
//   rate(m, n, k) = peak * matrix(k) * matrix_rows(m) * matrix_columns(n)
#include "tools/calibrate/kernel_rates.h"

#include <algorithm>
#include <memory>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/kernel.h"

namespace partita {
namespace {

using runtime::Operand;
using runtime::Params;
using runtime::Step;

// Taken in turns: in a training step too, operands were last touched long ago.
constexpr int kOperandSets = 4;

// A library kernel with buffers of its own, filled with small numbers.
class BoundKernel {
 public:
  static absl::StatusOr<std::shared_ptr<BoundKernel>> make(const Step& step, int threads) {
    auto k = std::make_shared<BoundKernel>();
    PARTITA_ASSIGN_OR_RETURN(k->kernel_, runtime::prepare_kernel(step, {.threads = threads}));
    for (const Operand& o : step.operands) {
      int64_t count = 1;
      for (int64_t d : o.shape) count *= d;
      // A byte pattern that is a number near 2e-2 in every float type: denormals would slow sums down.
      auto& buffer = k->memory_.emplace_back(static_cast<size_t>(count * dtype_size(o.dtype)) + 64, std::byte{0x3c});
      k->buffers_.push_back(buffer.data() + (64 - reinterpret_cast<uintptr_t>(buffer.data()) % 64) % 64);
    }
    return k;
  }
  void run() { kernel_->run(buffers_); }

 private:
  std::unique_ptr<runtime::LibraryKernel> kernel_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> buffers_;
};

using Shape = std::vector<int64_t>;

Step library_step(const char* name, DType dtype, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs,
                  Params params = {}) {
  Step step;
  step.kind = runtime::StepKind::kLibrary;
  step.name = name;
  step.params = std::move(params);
  step.inputs = static_cast<int32_t>(inputs.size());
  for (const auto* list : {&inputs, &outputs}) {
    for (const Shape& s : *list) step.operands.push_back({.dtype = dtype, .shape = s});
  }
  return step;
}

class KernelRates {
 public:
  KernelRates(const RankTeam& team, DeviceProfile& device) : team_(team), d_(device) {}

  absl::StatusOr<double> measure() {
    PARTITA_RETURN_IF_ERROR(matrices());
    PARTITA_RETURN_IF_ERROR(convolutions());
    PARTITA_RETURN_IF_ERROR(attention());
    return noise_ / timings_;
  }

 private:
  absl::StatusOr<double> seconds(const Step& step) {
    int threads = team_.threads;
    PARTITA_ASSIGN_OR_RETURN(Timing t, team_.time([&](int, runtime::Communicator*) -> absl::StatusOr<RankWork> {
      PARTITA_ASSIGN_OR_RETURN(auto kernel, BoundKernel::make(step, threads));
      return RankWork([kernel] {
        kernel->run();
        return absl::OkStatus();
      });
    }));
    noise_ += t.noise, ++timings_;
    return t.seconds;
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

  // Windows of 3 x 3 on planes that shrink as channels grow, as in every network of this kind; the three passes as one.
  absl::Status convolutions() {
    d_.convolution.points.clear();
    for (auto [channels, plane] : {std::pair{16, 64}, {64, 32}, {128, 16}, {256, 8}, {512, 4}}) {
      constexpr int64_t kBatch = 8;
      const Shape x = {kBatch, channels, plane, plane}, w = {channels, channels, 3, 3};
      const Params params = {{"pads_low", Shape{1, 1}}, {"pads_high", Shape{1, 1}}};
      double all = 0;
      for (const Step& step : {library_step("conv", DType::kF32, {x, w}, {x}, params),
                               library_step("conv_grad_data", DType::kF32, {x, w}, {x}, params),
                               library_step("conv_grad_weight", DType::kF32, {x, x}, {w}, params)}) {
        PARTITA_ASSIGN_OR_RETURN(double s, seconds(step));
        all += s;
      }
      double points = 9.0 * kBatch * plane * plane * channels * channels;  // of one pass, padding included
      double flops = 3 * 2 * points;
      d_.convolution.points.emplace_back(channels, std::min(1.0, flops / all / d_.flops[0]));
    }
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

  const RankTeam& team_;
  DeviceProfile& d_;
  double noise_ = 0, timings_ = 0;
};

}  // namespace

absl::StatusOr<double> measure_kernels(const RankTeam& team, DeviceProfile& device) {
  return KernelRates(team, device).measure();
}

}  // namespace partita
