#include "codegen/nvptx/device_launches.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "base/cat.h"
#include "ir/nest/device_schedule.h"
#include "runtime/program/batched_launches.h"

namespace partita {
namespace {

using runtime::Step;

struct Kernel {
  const LoopNest* nest = nullptr;
  int64_t blocks = 0, threads = 0;
  int64_t points = 0;  // vectors of them
  int kind = -1;       // of those that can be launched together
  bool alone = false;  // some step launches it by itself
};

class Launches {
 public:
  Launches(runtime::Program& program, const std::vector<NamedNest>& kernels) : program_(program) {
    std::map<std::string, int> kinds;
    for (const NamedNest& kernel : kernels) {
      const LoopNest nest = device_nest(*kernel.nest);
      const DeviceSchedule s = device_schedule(nest);
      Kernel& made = kernels_[kernel.name];
      made = {kernel.nest, s.blocks, s.threads, row_points(nest) * column_points(nest) / s.vector};
      made.kind = kinds.try_emplace(batching_key(nest, s), static_cast<int>(kinds.size())).first->second;
    }
    batched_.resize(kinds.size());
  }

  void choose() {
    for (runtime::ProgramSegment& segment : program_.segments) {
      std::vector<int> kinds;
      for (Step& step : segment.steps) {
        const Kernel* kernel = kernel_of(step);
        kinds.push_back(kernel != nullptr && kernel->blocks > 0 ? kernel->kind : -1);
        if (kernel == nullptr) continue;
        step.units = kernel->blocks;
        step.params["threads"] = kernel->threads;
      }
      for (const auto& [begin, end] : runtime::device_runs(program_, segment)) {
        const std::span<Step> steps(segment.steps.data() + begin, end - begin);
        for (const auto& launch : runtime::batched_launches(steps, {kinds.data() + begin, end - begin}, program_.slots))
          choose(steps, launch);
      }
    }
  }

  // In the order of `all`, then those for batched launches.
  std::vector<NamedNest> needed(const std::vector<NamedNest>& all) const {
    std::vector<NamedNest> needed;
    std::copy_if(all.begin(), all.end(), std::back_inserter(needed),
                 [&](const NamedNest& k) { return kernels_.at(k.name).alone; });
    std::copy_if(batched_.begin(), batched_.end(), std::back_inserter(needed),
                 [](const NamedNest& k) { return k.nest != nullptr; });
    return needed;
  }

 private:
  // Null for what is no generated code of the GPU.
  Kernel* kernel_of(const Step& step) {
    if (step.kind != runtime::StepKind::kKernel || step.device == runtime::DeviceTag::kHost) return nullptr;
    return &kernels_.at(step.name);
  }

  void choose(std::span<Step> steps, const std::vector<size_t>& launch) {
    for (size_t k : launch) {
      Kernel* kernel = kernel_of(steps[k]);
      if (kernel == nullptr) continue;
      if (launch.size() == 1) {
        kernel->alone = true;
        continue;
      }
      NamedNest& batched = batched_[static_cast<size_t>(kernel->kind)];
      if (batched.nest == nullptr) batched = {cat("joint", kernel->kind), kernel->nest, true};
      steps[k].name = batched.name;
      steps[k].params[runtime::kBatchedParam] = kernel->points;
    }
  }

  runtime::Program& program_;
  std::map<std::string, Kernel> kernels_;
  std::vector<NamedNest> batched_;  // by kind
};

}  // namespace

void choose_launches(runtime::Program& program, std::vector<NamedNest>& kernels) {
  Launches launches(program, kernels);
  launches.choose();
  kernels = launches.needed(kernels);
}

}  // namespace partita
