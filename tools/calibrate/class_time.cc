#include "tools/calibrate/class_time.h"

#include <cmath>

namespace partita {
namespace {

// A unit with its work of one class alone.
UnitWork part(UnitWork u, WorkClass c) {
  auto keep = [&](std::vector<MatrixWork>& list) {
    std::erase_if(list, [&](const MatrixWork& x) {
      return c != (x.channels > 0 ? WorkClass::kConvolution : WorkClass::kMatrix);
    });
  };
  keep(u.matrices), keep(u.input_gradients), keep(u.weight_gradients);
  if (c != WorkClass::kAttention) u.attention.clear();
  if (c != WorkClass::kMemory) {
    u.forward_traffic = u.backward_traffic = u.copied = u.composed = {0, 0};
    u.forward_kernels = u.backward_kernels = 0;
  }
  return u;
}

// The problem on devices like this one.
struct Elsewhere {
  Elsewhere(const Problem& original, const DeviceProfile& device) : cluster(*original.cluster), problem(original) {
    for (DeviceGroup& g : cluster.groups) g.device = device;
    problem.cluster = &cluster;
  }
  Cluster cluster;
  Problem problem;
};

double update_seconds(const Problem& problem, const DeviceProfile& device, const Layout& layout, int64_t stage) {
  Elsewhere there(problem, device);
  CostModel model(there.problem);
  const StepTimes parts = model.step_times(layout, model.predict(layout, true));
  double seconds = parts.updates[static_cast<size_t>(stage)][TimeKind::kOptimizer];
  for (const ChunkTimes& c : parts.chunks[static_cast<size_t>(stage)]) {  // pipedream's, one a micro-batch
    for (const PassTimes* pass : {&c.forward, &c.backward, &c.weight})
      seconds += (*pass)[TimeKind::kOptimizer] * static_cast<double>(micro_batches(problem, layout));
  }
  return seconds;
}

double communication_seconds(const Problem& problem, const DeviceProfile& device, const Layout& layout) {
  Elsewhere there(problem, device);
  Breakdown b = CostModel(there.problem).predict(layout, true).breakdown;
  return b.tensor + b.context + b.expert + b.gathers + b.bubble + b.send + b.gradients;
}

}  // namespace

double class_seconds(WorkClass c, const Problem& problem, const DeviceProfile& device, const Layout& layout,
                     int64_t stage) {
  if (c == WorkClass::kUpdate) return update_seconds(problem, device, layout, stage);
  if (c == WorkClass::kCommunication) return communication_seconds(problem, device, layout);
  const Workload& w = *problem.workload;
  std::vector<int> cuts = layout.cuts.empty() ? CostModel(problem).even_cuts(layout) : layout.cuts;
  const Layout own = layout.of_stage(stage);
  Share share{static_cast<double>(own.micro_batch), static_cast<double>(own.context), static_cast<double>(own.tensor),
              static_cast<double>(own.expert), own.sequence_parallel};
  double sum = 0;
  size_t unit = 0, block = 0;
  for (size_t chunk = 0; chunk < cuts.size(); ++chunk) {
    for (int k = 0; k < cuts[chunk] && unit < w.units.size(); ++k, ++unit) {
      const UnitWork& u = w.unit(unit);
      const RecomputeMode mode = u.is_block() ? on_device(layout.recompute_of(block++)) : RecomputeMode::kNone;
      if (chunk % static_cast<size_t>(layout.pipeline) != static_cast<size_t>(stage)) continue;
      UnitTime t = unit_time(part(u, c), w, device, problem.options, share);
      sum += t.forward + t.input_gradient + t.weight_gradient;
      const double again = t.again[static_cast<size_t>(mode)];
      sum += again == 0 && mode == RecomputeMode::kFull ? t.forward : again;
    }
  }
  return sum * static_cast<double>(micro_batches(problem, layout));
}

double memory_traffic_for(double seconds, const Problem& problem, const DeviceProfile& device, const Layout& layout,
                          int64_t stage) {
  DeviceProfile d = device;
  double low = 0.01, high = 100;
  while (high / low > 1.001) {
    d.software.memory_traffic = std::sqrt(low * high);
    bool more = class_seconds(WorkClass::kMemory, problem, d, layout, stage) < seconds;
    (more ? low : high) = d.software.memory_traffic;
  }
  return std::sqrt(low * high);
}

}  // namespace partita
