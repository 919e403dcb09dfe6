#include "tools/machine/local_gpus.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/device/gpu_monitor.h"

namespace partita {
namespace {

std::vector<std::string> words(const std::string& text) {
  return absl::StrSplit(text, absl::ByAnyChar(" -_()"), absl::SkipEmpty());
}

// How many of `count` GPUs CUDA shows: entries up to the first that is none.
int visible(int count) {
  const char* said = std::getenv("CUDA_VISIBLE_DEVICES");
  if (said == nullptr) return count;
  int shown = 0;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(said, ','))) {
    if (entry.empty() || entry[0] == '-') break;
    ++shown;
  }
  return std::min(shown, count);
}

// The kind of NVLink that a generation has.
std::string nvlink_kind(const std::string& architecture) {
  const int number = std::atoi(architecture.c_str() + 3);
  return number >= 100 ? "nvlink5" : number >= 90 ? "nvlink4" : number >= 80 ? "nvlink3" : "nvlink2";
}

}  // namespace

absl::StatusOr<LocalGpus> find_local_gpus() {
  LocalGpus gpus;
  const auto monitor = runtime::GpuMonitor::open();
  if (!monitor.ok()) return gpus;
  PARTITA_ASSIGN_OR_RETURN(int count, (*monitor)->count());
  for (int k = 0; k < visible(count); ++k) {
    PARTITA_ASSIGN_OR_RETURN(runtime::GpuReading reading, (*monitor)->read(k));
    if (!reading.architecture)
      return absl::FailedPreconditionError(cat("the driver does not tell the architecture of ", reading.name,
                                               "; say --target cuda:sm_90 or what it is"));
    const std::string architecture = cat("sm_", *reading.architecture);
    if (gpus.count > 0 && (reading.name != gpus.name || architecture != gpus.architecture)) break;
    gpus = {gpus.count + 1, reading.name, architecture, gpus.nvlink || reading.nvlink};
  }
  return gpus;
}

std::string profile_for(const std::string& gpu_name, const std::vector<std::string>& profiles) {
  const std::vector<std::string> given = words(gpu_name);
  std::string best;
  size_t most = 0;
  for (const std::string& profile : profiles) {
    const std::vector<std::string> parts = words(profile);
    const bool fits = std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return std::find(given.begin(), given.end(), part) != given.end();
    });
    if (fits && parts.size() > most) best = profile, most = parts.size();
  }
  return best;
}

absl::StatusOr<std::string> cluster_of_gpus(const LocalGpus& gpus, const ProfileLibrary& library) {
  const std::string device = profile_for(gpus.name, library.device_names());
  if (device.empty())
    return absl::NotFoundError(cat("no built-in profile fits ", quote(gpus.name), " (",
                                   absl::StrJoin(library.device_names(), ", "),
                                   "); measure it with partita doctor "
                                   "--calibrate local.yaml --target cuda:",
                                   gpus.architecture, " --like the nearest"));
  std::string text =
      cat("# ", gpus.count, " x ", gpus.name, "\nnodes: 1\ndevices_per_node: ", gpus.count, "\ndevice: ", device, "\n");
  if (gpus.count > 1)
    append(text, "links: [{kind: ", gpus.nvlink ? nvlink_kind(gpus.architecture) : "pcie", ", group: ", gpus.count,
           "}]\n");
  return text;
}

}  // namespace partita
