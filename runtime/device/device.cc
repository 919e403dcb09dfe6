#include "runtime/device/device.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {

absl::StatusOr<std::unique_ptr<Device>> open_device(const Program& program, int ordinal) {
  return open_device_from({}, program, ordinal);
}

absl::StatusOr<std::unique_ptr<Device>> open_device_from(const PluginSource& plugins, const Program& program,
                                                         int ordinal) {
  auto plugin = load_plugin(kCudaModule, kDevicePluginSymbol, plugins);
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
