#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/host/processors.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "oneapi/dnnl/dnnl.h"
#include "runtime/device/device.h"
#include "runtime/device/gpu_monitor.h"
#include "runtime/kernels/onednn.h"
#include "runtime/launch/plugin.h"
#include "tools/calibrate/calibrate.h"
#include "tools/calibrate/measure_job.h"
#include "tools/cli/command.h"
#include "tools/machine/cuda_toolkit.h"
#include "tools/machine/processors.h"

namespace partita {
namespace {

// One part that Partita may use here: whether it is there, and how to get it where it is not.
struct Part {
  std::string name, found, advice;
  bool present = false, needed = false;
};

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string vector_units() {
  if (__builtin_cpu_supports("avx512f"))
    return cat("AVX-512", __builtin_cpu_supports("avx512bf16") ? ", bf16" : "",
               runtime::is_bf16_slow() ? "; products of bf16 are computed in f32, which is faster here" : "");
  return __builtin_cpu_supports("avx2") ? "AVX2" : "none that Partita needs (AVX2)";
}

bool on_path(const char* program) {
  const char* path = std::getenv("PATH");
  std::stringstream folders(path ? path : "");
  std::string folder;
  while (std::getline(folders, folder, ':')) {
    if (access(cat(folder, "/", program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

Part library(const char* name, const char* file, const char* advice) {
  void* handle = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
  if (handle) dlclose(handle);
  return {name, handle ? file : "", advice, handle != nullptr, false};
}

// Whether the CUDA module was built with it.
bool has_cudnn_attention() {
  auto asked = runtime::load_plugin(runtime::kCudaModule, "partita_has_cudnn_attention", {});
  return asked.ok() && reinterpret_cast<bool (*)()>(*asked)();
}

std::vector<Part> examine() {
  std::vector<Part> parts;
  const dnnl_version_t* v = dnnl_version();
  parts.push_back({"oneDNN", cat(v->major, ".", v->minor, ".", v->patch), "tools/install_dependencies", true, true});
  auto runner = find_runner();
  parts.push_back({"runner", runner.ok() ? *runner : "", "build the target partita_runner", runner.ok(), true});
  bool mpirun = on_path("mpirun");
  parts.push_back({"mpirun", mpirun ? "on PATH" : "", "apt-get install openmpi-bin", mpirun, false});
  parts.push_back(library("Open MPI", "libmpi.so.40", "apt-get install libopenmpi3"));
  auto assembler = find_assembler();
  parts.push_back(
      {"ptxas", assembler.ok() ? *assembler : "",
       "apt-get install cuda-nvcc-13-0, or pip install nvidia-cuda-nvcc; without it there is no code for GPUs",
       assembler.ok(), false});
  auto module = runtime::find_plugin(runtime::kCudaModule, runtime::default_plugin_directories());
  parts.push_back({"CUDA module", module.ok() ? *module : "",
                   "build where the CUDA toolkit and the headers of cuDNN and NCCL are", module.ok(), false});
  const bool attention = has_cudnn_attention();
  parts.push_back(
      {"attention", attention ? "by cuDNN, in the CUDA module" : "",
       "build with the headers of cudnn-frontend (tools/install_dependencies); without them attention is by "
       "our own kernels",
       attention, false});
  parts.push_back(library("CUDA driver", "libcuda.so.1",
                          "install the NVIDIA driver; without it programs for GPUs can be compiled, not run"));
  parts.push_back(
      library("cuBLASLt", "libcublasLt.so.13", "apt-get install libcublas-13-0, or pip install nvidia-cublas"));
  parts.push_back(library("NCCL", "libnccl.so.2", "apt-get install libnccl2, or pip install nvidia-nccl-cu13"));
  parts.push_back(
      library("cuDNN", "libcudnn.so.9", "apt-get install cudnn9-cuda-13, or pip install nvidia-cudnn-cu13"));
  const auto monitor = runtime::GpuMonitor::open();
  parts.push_back({"NVML", monitor.ok() ? "libnvidia-ml.so.1" : "",
                   "a part of the NVIDIA driver; without it metrics have no clocks and no used memory of GPUs",
                   monitor.ok(), false});
  const int gpus = monitor.ok() ? (*monitor)->count().value_or(0) : 0;
  for (int k = 0; k < gpus; ++k) {
    const auto reading = (*monitor)->read(k);
    parts.push_back({cat("GPU ", k), reading.ok() ? reading->text() : "", std::string(reading.status().message()),
                     reading.ok(), false});
  }
  return parts;
}

struct Machine {
  std::string cpu, units;
  Processors processors;
  double memory = 0;
};

Machine machine() {
  Machine m{processor(), vector_units(), count_processors("/sys/devices/system"), 0};
  m.memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  return m;
}

}  // namespace

namespace {

// Ranks that a machine of so many cores is measured for: powers of two up to the cores, four at least.
std::vector<int> usual_ranks() {
  std::vector<int> ranks;
  for (int n = 1; n <= std::max(4, usable_processors()); n *= 2) ranks.push_back(n);
  return ranks;
}

absl::Status run_calibration(const std::string& output, CalibrationRequest request, bool json) {
  std::string folder = std::filesystem::path(output).parent_path().string();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)  // told before a minute of measuring
    return absl::NotFoundError(cat(quote(output), ": its folder cannot be written to; check the path"));
  auto start = std::chrono::steady_clock::now();
  if (request.ranks.empty()) request.ranks = request.gpu.empty() ? usual_ranks() : std::vector<int>{1};
  PARTITA_ASSIGN_OR_RETURN(request.runner, find_runner());
  if (!json) request.say = [](const std::string& what) { std::fprintf(stderr, "measuring %s\n", what.c_str()); };
  PARTITA_ASSIGN_OR_RETURN(Calibration found, calibrate(request));
  Machine m = machine();
  std::string about = cat(
      "# ", m.cpu, ", ", m.processors.cores, " cores, measured by `partita doctor --calibrate`; noise ",
      fmt::format("{:.0f} %", found.noise * 100),
      "\n# Plan with --profiles this file and a cluster.yaml of one line: preset: ", found.profiles.presets.back().name,
      "\n");
  PARTITA_RETURN_IF_ERROR(write_file_atomically(output, about + profile_text(found.profiles)));
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::vector<std::string> presets;
  for (const DeviceProfile& d : found.profiles.devices) {
    presets.push_back(d.name);
    if (!json) {
      const Precision p = request.gpu.empty() ? Precision::kFp32 : Precision::kBf16;
      std::printf("%-9s %6.1f GFLOP/s %s, %5.1f GB/s, a rank; memory traffic %.2f of the cost model's count\n",
                  d.name.c_str(), d.flops[static_cast<size_t>(p)] / 1e9, std::string(enum_name(p)).c_str(),
                  d.bandwidth / 1e9, d.software.memory_traffic);
    }
  }
  if (json) {
    std::printf(
        "%s\n",
        nlohmann::json{
            {"presets", presets}, {"noise", found.noise}, {"link_error", found.link_error}, {"seconds", seconds}}
            .dump(2)
            .c_str());
  } else {
    std::printf("%s written in %.0f s; noise %.0f %%%s; collectives fitted to %.0f %%\n", output.c_str(), seconds,
                found.noise * 100, found.noise > 0.1 ? " (the machine was busy: measure again when it is quiet)" : "",
                found.link_error * 100);
    void* driver = request.gpu.empty() ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) : nullptr;
    if (driver != nullptr) {
      dlclose(driver);
      std::printf("GPUs were left out: calibrate them with --target cuda:sm_90 or what yours are\n");
    }
  }
  return absl::OkStatus();
}

}  // namespace

void add_doctor(CLI::App& app, absl::Status& result) {
  struct Flags {
    bool json = false;
    std::string calibrate, target = "cpu:host";
    CalibrationRequest request;
    JobRequest job;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("doctor", "what is installed here, what is missing, and how to get it");
  verb->add_flag("--json", flags->json, "machine output");
  verb->add_option(
      "--calibrate", flags->calibrate,
      "measure this machine (about a minute, best with nothing else running) and write its profile to this "
      "YAML file, for --profiles of the verbs that plan");
  verb->add_option("--ranks", flags->request.ranks, "numbers of ranks (or of GPUs) to calibrate for: 1,2,4")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->needs("--calibrate");
  verb->add_option("--target", flags->target,
                   "what to measure: cpu:host, or cuda:sm_80, cuda:sm_90, cuda:sm_100 for this machine's GPUs");
  verb->add_option("--like", flags->request.like,
                   "the built-in profile that what is not measured of a GPU is taken from; default: by the GPU's name")
      ->needs("--target");
  auto* links = verb->add_option(
      "--links", flags->job.file,
      "measure what joins the ranks of a job that a launcher starts this in (mpirun, torchrun, srun), by their "
      "collectives, and write it as links for --profiles to this YAML file");
  links->excludes("--calibrate");
  verb->add_option("--rounds", flags->job.rounds,
                   "with --calibrate or --links: times that each kernel and message is measured, at most; "
                   "fewer take less time, and hear more of what else runs")
      ->check(CLI::Range(7, 10000));
  flags->job.talk.add(*verb);
  for (const char* option : {"--backend", "--interface", "--encrypt"}) verb->get_option(option)->needs(links);
  verb->callback([flags, verb, &result] {
    if (!flags->calibrate.empty() || !flags->job.file.empty()) {
      result = [&]() -> absl::Status {
        if (flags->target.starts_with("cuda:")) {
          flags->request.gpu = flags->target.substr(5);
        } else if (flags->target != "cpu:host") {
          return absl::InvalidArgumentError(
              cat("--target ", quote(flags->target), ": expected cpu:host, or cuda:sm_90 and the like"));
        }
        flags->job.gpu = flags->request.gpu, flags->request.rounds = flags->job.rounds;
        if (!flags->job.file.empty()) return measure_job(flags->job);
        return run_calibration(flags->calibrate, flags->request, flags->json);
      }();
      return;
    }
    for (const char* option : {"--rounds", "--target"}) {
      if (verb->count(option) == 0) continue;
      result = absl::InvalidArgumentError(cat(option, " says how --calibrate or --links measures: say one of them"));
      return;
    }
    bool* json = &flags->json;
    Machine m = machine();
    std::vector<Part> parts = examine();
    bool missing = false;
    nlohmann::json out = {{"processor", m.cpu},
                          {"vector_units", m.units},
                          {"cores", m.processors.cores},
                          {"packages", m.processors.packages},
                          {"numa_nodes", m.processors.numa_nodes},
                          {"memory_bytes", m.memory}};
    if (!*json)
      std::printf("%s, %d cores, %s, %.1f GB of memory\n", m.cpu.c_str(), m.processors.cores, m.units.c_str(),
                  m.memory / 1e9);
    for (const Part& p : parts) {
      missing = missing || (p.needed && !p.present);
      out["parts"].push_back({{"name", p.name},
                              {"present", p.present},
                              {"found", p.found},
                              {"needed", p.needed},
                              {"advice", p.present ? "" : p.advice}});
      if (!*json)
        std::printf(
            "%-12s %s\n", p.name.c_str(),
            p.present ? p.found.c_str() : cat("missing", p.needed ? "" : " (optional)", "; ", p.advice).c_str());
    }
    if (*json) std::printf("%s\n", out.dump(2).c_str());
    result = missing ? absl::FailedPreconditionError("a needed part is missing (see above)") : absl::OkStatus();
  });
}

}  // namespace partita
