#include "tools/calibrate/refine.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "fmt/format.h"

namespace partita {
namespace {

constexpr double kLeastShare = 0.01;  // of the step: less is noise

void scale(EfficiencyCurve& curve, double by) {
  for (auto& [size, share] : curve.points) share = std::clamp(share * by, 1e-6, 1.0);
}

class Refiner {
 public:
  // Corrects the group's devices in `out`.
  Refiner(const Problem& problem, const Layout& layout, const MeasuredGroup& measured, Refined& out)
      : problem_(problem), layout_(layout), measured_(measured), run_(measured.measured.run), out_(out) {}

  void correct() {
    matrices();
    curves();
    memory();
    communication();
    double before = device().software.step_seconds;
    if (std::abs(run_.gap_seconds - before) > kLeastShare * run_.step_seconds) {
      device().software.step_seconds = run_.gap_seconds;
      tell("software.step_seconds", before, run_.gap_seconds, "measured between the kernels of a step");
    }
  }

 private:
  DeviceProfile& device() { return out_.cluster.groups[measured_.group].device; }

  // Measured over predicted seconds; 1 where there is too little of it to tell.
  double ratio(WorkClass c) {
    double measured = run_.seconds(c), predicted = class_seconds(c, problem_, device(), layout_, measured_.stage);
    if (measured < kLeastShare * run_.step_seconds || predicted <= 0) return 1;
    why_ = fmt::format("{} took {:.4g} ms a step, predicted {:.4g} ms", work_class_name(c), measured * 1e3,
                       predicted * 1e3);
    return measured / predicted;
  }
  void tell(std::string constant, double before, double after, std::string why) {
    if (out_.cluster.groups.size() > 1) constant = cat(device().name, ": ", constant);
    out_.corrections.push_back({std::move(constant), before, after, std::move(why)});
  }

  void matrices() {
    double r = ratio(WorkClass::kMatrix);
    if (r == 1) return;
    DeviceProfile& d = device();
    size_t p = static_cast<size_t>(problem_.options.precision);
    double before = d.flops[p] > 0 ? d.flops[p] : *std::max_element(d.flops.begin(), d.flops.end());
    d.flops[p] = before / r;
    tell(cat("flops.", enum_name(problem_.options.precision)), before, d.flops[p], why_);
    for (EfficiencyCurve* c : {&d.convolution, &d.attention_flash, &d.attention_math}) scale(*c, r);
  }

  void curves() {
    DeviceProfile& d = device();
    auto correct = [&](WorkClass c, EfficiencyCurve& curve, const char* name) {
      double r = ratio(c);
      if (r == 1 || curve.points.empty()) return;
      double before = curve.points.back().second;
      scale(curve, 1 / r);
      tell(cat(name, ", all of it; its last point"), before, curve.points.back().second, why_);
    };
    correct(WorkClass::kConvolution, d.convolution, "convolution");
    correct(WorkClass::kAttention, problem_.options.flash ? d.attention_flash : d.attention_math,
            problem_.options.flash ? "attention_flash" : "attention_math");
  }

  void memory() {
    DeviceProfile& d = device();
    if (double r = ratio(WorkClass::kUpdate); r != 1) {
      double before = d.bandwidth;
      d.bandwidth /= r;
      tell("bandwidth", before, d.bandwidth, why_);
    }
    if (ratio(WorkClass::kMemory) == 1) return;
    double before = d.software.memory_traffic;
    d.software.memory_traffic =
        memory_traffic_for(run_.seconds(WorkClass::kMemory), problem_, d, layout_, measured_.stage);
    tell("software.memory_traffic", before, d.software.memory_traffic, why_);
  }

  void communication() {
    if (layout_.pipeline > 1 || out_.cluster.groups.size() > 1) return;
    if (ratio(WorkClass::kCommunication) == 1) return;
    const double r = slower_links(run_.seconds(WorkClass::kCommunication));
    for (LinkLevel& level : out_.cluster.groups[0].links) {
      double bandwidth = level.link.bandwidth, latency = level.link.latency;
      slow_down(level.link, r);
      tell(cat("link ", level.link.kind, ": bandwidth"), bandwidth, level.link.bandwidth, why_);
      tell(cat("link ", level.link.kind, ": latency"), latency, level.link.latency, why_);
    }
  }

  // How many times as slow the links are where `seconds` are waited for them. What is waited is what no compute hides:
  // it grows by more than the links' time does, and by other algorithms, so that measured over predicted is not it.
  double slower_links(double seconds) const {
    Cluster cluster = out_.cluster;  // with the compute that has been corrected
    Problem problem = problem_;
    problem.cluster = &cluster;
    double low = 0.01, high = 1e4;
    while (high / low > 1.001) {
      const double r = std::sqrt(low * high);
      cluster.groups[0].links = out_.cluster.groups[0].links;
      for (LinkLevel& level : cluster.groups[0].links) slow_down(level.link, r);
      const DeviceProfile& device = cluster.groups[0].device;
      const bool more = class_seconds(WorkClass::kCommunication, problem, device, layout_, 0) < seconds;
      (more ? low : high) = r;
    }
    return std::sqrt(low * high);
  }
  static void slow_down(LinkProfile& link, double r) { link.bandwidth /= r, link.latency *= r, link.wait_seconds *= r; }

  const Problem& problem_;
  const Layout& layout_;
  const MeasuredGroup& measured_;
  const MeasuredRun& run_;
  Refined& out_;
  std::string why_;
};

}  // namespace

Refined refine(const Problem& problem, const Layout& layout, const std::vector<MeasuredGroup>& runs) {
  Refined out{*problem.cluster, {}};
  for (const MeasuredGroup& run : runs) Refiner(problem, layout, run, out).correct();
  return out;
}

}  // namespace partita
