#include "tools/calibrate/kernel_times.h"

#include <algorithm>

#include "base/status.h"
#include "tools/calibrate/bound_kernel.h"

namespace partita {

using runtime::Params;
using runtime::Step;
using Shape = std::vector<int64_t>;

absl::StatusOr<double> KernelTimes::time(const Key& key, const PrepareRank& prepare) {
  PARTITA_ASSIGN_OR_RETURN(Timing t, team_.time(prepare));
  noise_ += t.noise, ++timings_;
  std::vector<double>& usual = usual_[key];
  usual.push_back(t.seconds * (1 + t.noise));
  std::sort(usual.begin(), usual.end());
  return usual[(usual.size() - 1) / 2];
}

absl::StatusOr<double> KernelTimes::seconds(const std::string& name, const PrepareRank& prepare) {
  return time({name, DType::kInvalid, {}, {}}, prepare);
}

absl::StatusOr<double> KernelTimes::seconds(const Step& step) {
  Shapes shapes;
  for (const runtime::Operand& o : step.operands) shapes.push_back(o.shape);
  return time({step.name, step.operands[0].dtype, step.params, std::move(shapes)},
              [&](const RankPlace& place) -> absl::StatusOr<RankWork> {
                PARTITA_ASSIGN_OR_RETURN(auto kernel, BoundKernel::make(step, place));
                return RankWork([kernel] {
                  kernel->run();
                  return absl::OkStatus();
                });
              });
}

absl::StatusOr<double> KernelTimes::product_rate(DType dtype, int64_t m, int64_t n, int64_t k, bool tf32) {
  Params params;
  if (tf32) params["tf32"] = int64_t{1};
  PARTITA_ASSIGN_OR_RETURN(double s, seconds(library_step("matmul", dtype, {{m, k}, {k, n}}, {{m, n}}, params)));
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / s;
}

absl::StatusOr<double> KernelTimes::convolution_rate(const Convolution& c) {
  const Shape x = {c.batch, c.from, c.plane * c.stride, c.plane * c.stride}, y = {c.batch, c.to, c.plane, c.plane},
              w = {c.to, c.from, 3, 3};
  const Params params = {{"strides", Shape{c.stride, c.stride}},
                         {"pads_low", Shape{1, 1}},
                         {"pads_high", Shape{2 - c.stride, 2 - c.stride}}};
  double all = 0;
  for (const Step& step : {library_step("conv", c.dtype, {x, w}, {y}, params),
                           library_step("conv_grad_data", c.dtype, {y, w}, {x}, params),
                           library_step("conv_grad_weight", c.dtype, {y, x}, {w}, params)}) {
    PARTITA_ASSIGN_OR_RETURN(double s, seconds(step));
    all += s;
  }
  const double points = 9.0 * static_cast<double>(c.batch * c.plane * c.plane * c.from * c.to);  // of one pass
  return 3 * 2 * points / all;
}

absl::StatusOr<KernelTimes::AttentionRates> KernelTimes::attention_rates(const Attention& a) {
  const Shape q = {a.batch, a.heads, a.length, a.size}, lse = {a.batch, a.heads, a.length};
  const double flops =
      4.0 * static_cast<double>(a.batch * a.heads * (a.length * (a.length + 1) / 2)) * static_cast<double>(a.size);
  const Params causal = {{"causal", int64_t{1}}};
  Step forward = library_step("attention", a.dtype, {q, q, q}, {q, lse}, causal),
       backward = library_step("attention_grad", a.dtype, {q, q, q, q, {}, q, lse}, {q, q, q}, causal);
  backward.operands[4].dtype = DType::kInvalid;                          // no mask but the causal one
  forward.operands[4].dtype = backward.operands[6].dtype = DType::kF32;  // the logarithms of sums
  PARTITA_ASSIGN_OR_RETURN(double forward_seconds, seconds(forward));
  PARTITA_ASSIGN_OR_RETURN(double backward_seconds, seconds(backward));
  return AttentionRates{flops / forward_seconds, 2.5 * flops / backward_seconds};
}

}  // namespace partita
