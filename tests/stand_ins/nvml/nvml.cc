// NVML's interface, as far as Partita calls it: one GPU, that of tests/stand_ins/cuda, which tells all but its power.
// STAND_IN_GPUS=2 and STAND_IN_GPU_NAME make it others, joined by NVLink where they are several.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum Code { kSuccess = 0, kUninitialized = 1, kInvalid = 2, kNotSupported = 3, kNotFound = 6 };
constexpr const char* kUuid = "GPU-6f6e6520-6f66-2061-206d-616368696e65";  // "one of a machine"

struct Memory {
  unsigned long long total, free, used;
};

bool ready = false;
int the_gpu = 0;

unsigned gpus() {
  const char* count = std::getenv("STAND_IN_GPUS");
  return count == nullptr ? 1 : static_cast<unsigned>(std::atoi(count));
}

int check(void* device) { return !ready ? kUninitialized : device == &the_gpu ? kSuccess : kInvalid; }

}  // namespace

extern "C" {

int nvmlInit_v2() {
  ready = true;
  return kSuccess;
}
const char* nvmlErrorString(int code) {
  return code == kNotSupported ? "Not Supported" : code == kNotFound ? "Not Found" : "Invalid Argument";
}
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = gpus(), ready ? kSuccess : kUninitialized; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &the_gpu;
  return !ready ? kUninitialized : index < gpus() ? kSuccess : kInvalid;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  *device = &the_gpu;
  return !ready ? kUninitialized : std::strcmp(uuid, kUuid) == 0 ? kSuccess : kNotFound;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  const char* other = std::getenv("STAND_IN_GPU_NAME");
  std::snprintf(name, length, "%s", other == nullptr ? "this machine" : other);
  return check(device);
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  *memory = {8ull << 30, 6ull << 30, 2ull << 30};
  return check(device);
}
int nvmlDeviceGetClockInfo(void* device, unsigned type, unsigned* mhz) {
  *mhz = type == 1 ? 1410 : type == 2 ? 2619 : 0;
  return type == 1 || type == 2 ? check(device) : kInvalid;
}
int nvmlDeviceGetMaxClockInfo(void* device, unsigned type, unsigned* mhz) {
  *mhz = 1980;
  return type == 1 ? check(device) : kInvalid;
}
int nvmlDeviceGetTemperature(void* device, unsigned sensor, unsigned* celsius) {
  *celsius = 35;
  return sensor == 0 ? check(device) : kInvalid;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *major = 9, *minor = 0;
  return check(device);
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  *active = gpus() > 1;
  return link < 4 ? check(device) : kInvalid;
}
int nvmlDeviceGetPowerUsage(void*, unsigned*) { return kNotSupported; }
}
