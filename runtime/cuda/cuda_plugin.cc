// libpartita_cuda.so: the CUDA back end, loaded at run time so that nothing else needs CUDA (runtime/device/device.h).
#include "base/cat.h"
#include "runtime/cuda/cuda_device.h"

// Which of NVIDIA's libraries cannot be used here, and why; Ok where all can.
extern "C" void partita_check_libraries(absl::Status* status) {
  using namespace partita::runtime;
  for (const absl::Status& s : {CublasLt::load().status(), Cudnn::load().status(), Nccl::load().status()})
    status->Update(s);
}

// For doctor.
extern "C" bool partita_has_cudnn_attention() { return partita::runtime::has_cudnn_attention(); }

extern "C" partita::runtime::Device* partita_open_device(int version, const partita::runtime::Program* program,
                                                         int ordinal, absl::Status* why) {
  using partita::runtime::kDevicePluginVersion;
  if (version != kDevicePluginVersion) {
    *why = absl::FailedPreconditionError(partita::cat("the CUDA module is of interface ", kDevicePluginVersion,
                                                      ", this runtime of ", version, "; build both from one release"));
    return nullptr;
  }
  auto device = partita::runtime::CudaDevice::open(*program, ordinal);
  if (device.ok()) return device->release();
  *why = device.status();
  return nullptr;
}
