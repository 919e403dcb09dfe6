// Declared here as NVML's documentation has it: the driver brings the library, but not its header.
#include "runtime/device/gpu_monitor.h"

#include <dlfcn.h>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"

namespace partita::runtime {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr unsigned kSmClock = 1, kMemoryClock = 2;  // nvmlClockType_t
constexpr unsigned kGpuSensor = 0;                  // nvmlTemperatureSensors_t
constexpr unsigned kMostLinks = 18;                 // NVML_NVLINK_MAX_LINKS

struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};

}  // namespace

struct GpuMonitor::Functions {
  int (*init)();
  const char* (*error)(int);
  int (*count)(unsigned*);
  int (*by_index)(unsigned, void**);
  int (*by_uuid)(const char*, void**);
  int (*name)(void*, char*, unsigned);
  int (*memory)(void*, Memory*);
  int (*clock)(void*, unsigned type, unsigned* mhz);
  int (*most_clock)(void*, unsigned type, unsigned* mhz);
  int (*temperature)(void*, unsigned sensor, unsigned* celsius);
  int (*power)(void*, unsigned* milliwatts);
  // Null in libraries that are older.
  int (*capability)(void*, int* major, int* minor);
  int (*link_state)(void*, unsigned link, unsigned* active);

  absl::Status load() {
    void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = ::dlerror();
      return absl::NotFoundError(cat("NVML cannot be loaded: ", quote(reason == nullptr ? kLibrary : reason, 300)));
    }
    const char* missing = nullptr;
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, symbol));
      if (function == nullptr) missing = symbol;
    };
    find(init, "nvmlInit_v2");
    find(error, "nvmlErrorString");
    find(count, "nvmlDeviceGetCount_v2");
    find(by_index, "nvmlDeviceGetHandleByIndex_v2");
    find(by_uuid, "nvmlDeviceGetHandleByUUID");
    find(name, "nvmlDeviceGetName");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(clock, "nvmlDeviceGetClockInfo");
    find(most_clock, "nvmlDeviceGetMaxClockInfo");
    find(temperature, "nvmlDeviceGetTemperature");
    find(power, "nvmlDeviceGetPowerUsage");
    const char* needed = missing;
    find(capability, "nvmlDeviceGetCudaComputeCapability");
    find(link_state, "nvmlDeviceGetNvLinkState");
    if (missing = needed; missing != nullptr)
      return absl::FailedPreconditionError(cat("NVML (", kLibrary, ") has no ", missing));
    const int code = init();
    return code == 0 ? absl::OkStatus() : absl::FailedPreconditionError(cat("NVML does not start: ", error(code)));
  }
};

absl::StatusOr<const GpuMonitor*> GpuMonitor::open() {
  static Functions functions{};
  static const absl::Status loaded = functions.load();
  static const GpuMonitor monitor(functions);
  if (!loaded.ok()) return loaded;
  return &monitor;
}

absl::Status GpuMonitor::check(int code, const char* call) const {
  return code == 0 ? absl::OkStatus() : absl::FailedPreconditionError(cat("NVML: ", call, ": ", f_.error(code)));
}

absl::StatusOr<int> GpuMonitor::count() const {
  unsigned count = 0;
  PARTITA_RETURN_IF_ERROR(check(f_.count(&count), "number of GPUs"));
  return static_cast<int>(count);
}

absl::StatusOr<GpuReading> GpuMonitor::read(int number) const {
  void* device = nullptr;
  PARTITA_RETURN_IF_ERROR(check(f_.by_index(static_cast<unsigned>(number), &device), "GPU by number"));
  return read_device(device);
}

absl::StatusOr<GpuReading> GpuMonitor::read(std::span<const char, 16> uuid) const {
  std::string text = "GPU-";
  for (size_t k = 0; k < uuid.size(); ++k) {
    if (k == 4 || k == 6 || k == 8 || k == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<uint8_t>(uuid[k]));
  }
  void* device = nullptr;
  PARTITA_RETURN_IF_ERROR(check(f_.by_uuid(text.c_str(), &device), "GPU by UUID"));
  return read_device(device);
}

absl::StatusOr<GpuReading> GpuMonitor::read_device(void* device) const {
  GpuReading r;
  char name[96] = {};
  PARTITA_RETURN_IF_ERROR(check(f_.name(device, name, sizeof name), "name"));
  r.name = name;
  if (Memory memory{}; f_.memory(device, &memory) == 0) {
    r.memory_bytes = static_cast<int64_t>(memory.total);
    r.used_bytes = static_cast<int64_t>(memory.used);
  }
  if (int major = 0, minor = 0; f_.capability != nullptr && f_.capability(device, &major, &minor) == 0)
    r.architecture = 10 * major + minor;
  unsigned value = 0;
  for (unsigned link = 0; f_.link_state != nullptr && link < kMostLinks && !r.nvlink; ++link)
    r.nvlink = f_.link_state(device, link, &value) == 0 && value != 0;
  const auto keep = [&](std::optional<int>& to, int code) {
    if (code == 0) to = static_cast<int>(value);
  };
  keep(r.sm_mhz, f_.clock(device, kSmClock, &value));
  keep(r.most_sm_mhz, f_.most_clock(device, kSmClock, &value));
  keep(r.memory_mhz, f_.clock(device, kMemoryClock, &value));
  keep(r.celsius, f_.temperature(device, kGpuSensor, &value));
  if (f_.power(device, &value) == 0) r.watts = value / 1000.0;
  return r;
}

std::vector<std::pair<std::string, double>> GpuReading::metrics() const {
  std::vector<std::pair<std::string, double>> list;
  const auto add = [&](const char* name, const auto& value) {
    if (value) list.emplace_back(name, static_cast<double>(*value));
  };
  add("gpu_used_bytes", used_bytes);
  add("gpu_sm_mhz", sm_mhz);
  add("gpu_memory_mhz", memory_mhz);
  add("gpu_watts", watts);
  add("gpu_celsius", celsius);
  return list;
}

std::string GpuReading::text() const {
  std::string text;
  const auto add = [&](const std::string& part) { append(text, text.empty() ? ": " : ", ", part); };
  if (used_bytes && memory_bytes)
    add(fmt::format("{:.1f} of {:.1f} GB used", static_cast<double>(*used_bytes) * 1e-9,
                    static_cast<double>(*memory_bytes) * 1e-9));
  if (sm_mhz) add(cat("SM at ", *sm_mhz, most_sm_mhz ? cat(" of ", *most_sm_mhz) : "", " MHz"));
  if (memory_mhz) add(cat("memory at ", *memory_mhz, " MHz"));
  if (watts) add(fmt::format("{:.0f} W", *watts));
  if (celsius) add(cat(*celsius, " C"));
  return name + text;
}

}  // namespace partita::runtime
