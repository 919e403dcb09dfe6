#include "runtime/device/device.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/launch/plugin.h"

namespace partita::runtime {

bool needs_device(const Program& program) { return program.target.starts_with("cuda:"); }

bool runs_on_host(const Program& program, const Step& step) {
  const bool computes = step.kind == StepKind::kKernel || step.kind == StepKind::kLibrary;
  return needs_device(program) && computes && step.device == DeviceTag::kHost;
}

bool in_host_memory(Region region) { return region == Region::kHostState || region == Region::kHostArena; }

absl::StatusOr<std::unique_ptr<Device>> open_device(const Program& program, int ordinal) {
  auto plugin = load_plugin(kCudaModule, kDevicePluginSymbol, default_plugin_directories());
  if (!plugin.ok())
    return absl::FailedPreconditionError(cat("the program is compiled for ", quote(program.target),
                                             ", but this runtime has no CUDA module: ", plugin.status().message()));
  absl::Status why;
  std::unique_ptr<Device> device(
      reinterpret_cast<OpenDevicePlugin*>(*plugin)(kDevicePluginVersion, &program, ordinal, &why));
  if (device == nullptr) return with_context(why, cat("the program is compiled for ", program.target));
  return device;
}

}  // namespace partita::runtime
