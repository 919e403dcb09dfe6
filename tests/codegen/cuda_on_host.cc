#ifdef PARTITA_STAND_INS
#include "tests/codegen/cuda_on_host.h"

#include <atomic>
#include <set>
#include <string>

#include "base/cat.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/joint_launches.h"
#include "tests/stand_ins/cuda/kernels.h"

namespace partita {
std::mutex& one_block() {
  static std::mutex mutex;
  return mutex;
}

void put_kernels(const SimtModule& kernels, runtime::Program& program) {
  static std::atomic<int> count = 0;
  const std::string image = cat("program ", ++count);
  std::set<std::string> known;
  for (const runtime::ProgramSegment& segment : program.segments) {
    for (const runtime::Step& step : segment.steps) {
      if (step.kind != runtime::StepKind::kKernel || step.device == runtime::DeviceTag::kHost ||
          !known.insert(step.name).second)
        continue;
      const size_t count = step.params.count(runtime::kJointParam) > 0 ? 1 : step.operands.size();
      stand_in::register_kernel(image, step.name,
                                [&kernels, name = step.name, count](const stand_in::Launch& launch,
                                                                    void* const* arguments) -> stand_in::Work {
                                  std::vector<char*> addresses;
                                  for (size_t k = 0; k < count; ++k)
                                    addresses.push_back(*static_cast<char* const*>(arguments[k]));
                                  return [&kernels, name, launch, addresses] {
                                    std::lock_guard lock(one_block());
                                    kernels.launch(name, launch.blocks.x, launch.threads.x, addresses.data(),
                                                   SimtOrder::kShuffled);
                                  };
                                });
    }
  }
  const std::string text = stand_in::kImageMark + image;
  program.kernels.assign(text.c_str(), text.c_str() + text.size() + 1);
}

absl::StatusOr<std::unique_ptr<runtime::Device>> open_cuda_on_host(const runtime::Program& program, int ordinal) {
  static const bool registered = (register_own_kernels(), true);
  (void)registered;
  return runtime::CudaDevice::open(program, ordinal);
}

}  // namespace partita
#endif
