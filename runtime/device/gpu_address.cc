// Declared here as CUDA's driver API has it: the driver brings the library, but not its header.
#include "runtime/device/gpu_address.h"

#include <dlfcn.h>

#include "runtime/device/cuda_environment.h"

namespace partita::runtime {
namespace {

constexpr int kBus = 33, kDevice = 34, kDomain = 50;  // CU_DEVICE_ATTRIBUTE_PCI_*_ID

}  // namespace

std::optional<PciAddress> gpu_address(int number, bool several_ranks) {
  prepare_cuda_environment(several_ranks);
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return std::nullopt;
  const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(::dlsym(driver, "cuDeviceGet"));
  const auto attribute = reinterpret_cast<int (*)(int*, int, int)>(::dlsym(driver, "cuDeviceGetAttribute"));
  int gpu = 0;
  if (init == nullptr || get == nullptr || attribute == nullptr || init(0) != 0 || get(&gpu, number) != 0)
    return std::nullopt;
  PciAddress at;
  if (attribute(&at.domain, kDomain, gpu) != 0 || attribute(&at.bus, kBus, gpu) != 0 ||
      attribute(&at.device, kDevice, gpu) != 0)
    return std::nullopt;
  return at;
}

}  // namespace partita::runtime
