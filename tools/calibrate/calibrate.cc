#include "tools/calibrate/calibrate.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_join.h"
#include "base/cat.h"
#include "base/host/processors.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/generate/gpt.h"
#include "frontend/generate/mlp.h"
#include "tools/calibrate/class_time.h"
#include "tools/calibrate/gpu_rates.h"
#include "tools/calibrate/kernel_rates.h"
#include "tools/calibrate/link_rates.h"
#include "tools/calibrate/probe.h"
#include "tools/machine/local_gpus.h"

namespace partita {
namespace {

constexpr const char* kAdamW = "optimizer: {kind: adamw, lr: 0.0001}\n";
constexpr const char* kClasses = "loss: {kind: cross_entropy, output: logits, target: target}\n";

double physical_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

Cluster cluster_of(const DeviceProfile& device, int ranks) {
  DeviceGroup group;
  group.devices_per_node = ranks;
  group.device = device;
  Cluster cluster;
  cluster.groups = {group};
  return cluster;
}

// Parts of a profile that say how a step is run, and that our runtime settles by design rather than by speed: it
// reduces after the last backward in few messages, fuses what others compose, and keeps gradients in f32.
void settle_software(SoftwareProfile& s) {
  s.step_seconds = s.micro_batch_seconds = s.kernel_seconds = s.recompute_seconds = 0;
  s.overlap_data = s.overlap_gather = s.overlap_send = s.overlap_slowdown = s.straggler_per_doubling = 0;
  s.gradient_bytes = 4;
  s.accumulate_bytes = s.bucket_bytes = s.shard_message_bytes = s.gather_message_bytes = s.fused_softmax_keys = 0;
  s.composed_forward_bytes = s.composed_backward_bytes = s.composed_saved_bytes = 0;
  s.memory_traffic = 1, s.copies = 0;
}

// The same of GPUs, where collectives run beside kernels; how much of them hides is not measured.
void settle_gpu_software(SoftwareProfile& s) {
  const SoftwareProfile before = s;
  settle_software(s);
  s.overlap_data = before.overlap_data, s.overlap_gather = before.overlap_gather;
  s.overlap_send = before.overlap_send, s.overlap_slowdown = before.overlap_slowdown;
  s.straggler_per_doubling = before.straggler_per_doubling;
}

// A transformer as large as keeps its device busy.
struct StepProbe {
  GptSpec model;
  int64_t samples;
  Precision precision;
};
const StepProbe kHostStep{
    {.layers = 2, .hidden = 512, .heads = 8, .vocab = 4096, .sequence = 256}, 4, Precision::kFp32};
const StepProbe kGpuStep{
    {.layers = 4, .hidden = 2048, .heads = 16, .vocab = 32768, .sequence = 1024}, 4, Precision::kBf16};

// What a rank's kernels of a class take in a training step. Each rank has its cores, so what interrupts a kernel is
// other programs, and a kernel's own shortest time leaves that out.
double undisturbed(const MeasuredRun& run, WorkClass c) {
  double sum = 0;
  for (const MeasuredStep& s : run.steps) sum += s.work == c ? s.fastest : 0;
  return sum;
}

// A device that `ranks` take turns on: all its rates are divided, all its overheads multiplied.
DeviceProfile shared_by(DeviceProfile d, double ranks) {
  for (double& f : d.flops) f /= ranks;
  for (double* rate : {&d.bandwidth, &d.host_bandwidth, &d.host_update_rate}) *rate /= ranks;
  for (double* seconds : {&d.launch_seconds, &d.software.step_seconds, &d.software.micro_batch_seconds})
    *seconds *= ranks;
  return d;
}

// Bandwidth by bytes from the optimizer's nests over parameters of many sizes: each reads and writes all its bytes
// once, and the rest of the step has pushed them out of the caches as in any training.
absl::Status measure_host_memory(int ranks, const std::string& runner, DeviceProfile& device) {
  PARTITA_ASSIGN_OR_RETURN(GraphWriter graph, generate_mlp({.sizes = {32, 64, 256, 1024, 4096, 1024}}));
  PARTITA_ASSIGN_OR_RETURN(ProbeResult probe,
                           run_probe(std::move(graph), {cat(kClasses, kAdamW), 8, ranks, 20}, runner));
  std::vector<std::pair<double, double>> rates;  // bytes, bytes/s
  for (const MeasuredStep& s : probe.run.steps) {
    if (s.work == WorkClass::kUpdate && s.bytes > 1e3 && s.fastest > 0)
      rates.emplace_back(s.bytes, s.bytes / s.fastest);
  }
  if (rates.empty()) return absl::InternalError("the probe's optimizer moved no bytes");
  std::sort(rates.begin(), rates.end());
  device.bandwidth = 0;
  std::vector<std::pair<double, double>> points;  // nests of about one size as one
  for (size_t k = 0; k < rates.size();) {
    double bytes = 0, rate = 0, n = 0;
    for (double first = rates[k].first; k < rates.size() && rates[k].first < 4 * first; ++k)
      bytes += rates[k].first, rate += rates[k].second, ++n;
    points.emplace_back(bytes / n, rate / n);
    device.bandwidth = std::max(device.bandwidth, rate / n);
  }
  device.memory.points.clear();
  for (auto [bytes, rate] : points) device.memory.points.emplace_back(std::round(bytes), rate / device.bandwidth);
  return absl::OkStatus();
}

// A small transformer: what its norms, activations, residuals and loss take against what the cost model counts, and
// what the step takes beside its kernels.
absl::Status measure_step(int ranks, const CalibrationRequest& request, const StepProbe& step, DeviceProfile& device) {
  PARTITA_ASSIGN_OR_RETURN(GraphWriter graph, generate_gpt(step.model));
  const std::string recipe = cat(kAdamW, "precision: ", enum_name(step.precision), "\n");
  PARTITA_ASSIGN_OR_RETURN(ProbeResult probe,
                           run_probe(std::move(graph), {recipe, step.samples, ranks, 20, request.gpu}, request.runner));
  const Cluster cluster = cluster_of(device, ranks);
  Problem problem;
  problem.workload = &probe.workload, problem.cluster = &cluster, problem.global_batch = step.samples * ranks;
  problem.options.precision = step.precision;
  const Layout layout{.data = ranks, .micro_batch = step.samples};
  // Products are slower in a step than one after the other: what others left in the caches is not theirs.
  const double slower = probe.run.seconds(WorkClass::kMatrix) /
                        std::max(1e-12, class_seconds(WorkClass::kMatrix, problem, device, layout));
  if (slower > 1) {
    for (double& f : device.flops) f /= slower;
    // Told relative to them, and measured by themselves.
    for (EfficiencyCurve* c : {&device.convolution, &device.attention_flash, &device.attention_math}) {
      for (auto& [size, share] : c->points) share = std::min(1.0, share * slower);
    }
  }
  device.software.memory_traffic =
      memory_traffic_for(undisturbed(probe.run, WorkClass::kMemory), problem, device, layout);
  device.software.step_seconds = std::max(0.0, probe.gap_seconds);
  return absl::OkStatus();
}

// That many ranks on the host, or on a GPU each.
RankTeam team_of(int ranks, const CalibrationRequest& request) {
  RankTeam team = request.gpu.empty() ? RankTeam::of(ranks) : RankTeam::on_gpus(ranks, cat("cuda:", request.gpu));
  team.rounds = request.rounds;
  return team;
}

// One of `ranks` that each have cores of their own.
absl::StatusOr<DeviceProfile> measure_host(int ranks, const DeviceProfile& base, const CalibrationRequest& request,
                                           double& noise) {
  const RankTeam team = team_of(ranks, request);
  DeviceProfile device = base;
  device.source = cat("measured: ", ranks, ranks == 1 ? " rank" : " ranks at once", " of ", team.threads,
                      team.threads == 1 ? " thread" : " threads");
  settle_software(device.software);
  request.say(cat(ranks, ranks == 1 ? " rank" : " ranks", ": products, convolutions, attention"));
  PARTITA_ASSIGN_OR_RETURN(double kernel_noise, measure_host_kernels(team, device));
  noise = std::max(noise, kernel_noise);
  request.say(cat(ranks, ranks == 1 ? " rank" : " ranks", ": memory and whole steps"));
  PARTITA_RETURN_IF_ERROR(measure_host_memory(ranks, request.runner, device));
  PARTITA_RETURN_IF_ERROR(measure_step(ranks, request, kHostStep, device));
  device.host_bandwidth = device.bandwidth;
  return device;
}

// One of `ranks` GPUs that all work at once.
absl::StatusOr<DeviceProfile> measure_gpus(int ranks, const DeviceProfile& base, const CalibrationRequest& request,
                                           double& noise) {
  const std::string what = cat(ranks, ranks == 1 ? " GPU" : " GPUs");
  DeviceProfile device = base;
  device.source = cat("measured: ", what, " at once; what is not measured as of ", base.name);
  settle_gpu_software(device.software);
  request.say(cat(what, ": launches, products, attention, copies, convolutions"));
  PARTITA_ASSIGN_OR_RETURN(double kernel_noise, measure_gpu(team_of(ranks, request), {}, device, request.say));
  noise = std::max(noise, kernel_noise);
  request.say(cat(what, ": whole steps"));
  PARTITA_RETURN_IF_ERROR(measure_step(ranks, request, kGpuStep, device));
  return device;
}

// The names of the GPUs that ranks would have, one after the other, as far as each has one of its own and up to `most`.
absl::StatusOr<std::vector<std::string>> gpus(const std::string& target, size_t most) {
  const RankTeam team = RankTeam::on_gpus(1, target);
  std::vector<std::string> names;
  while (names.size() < most) {
    auto opened = runtime::open_device(*team.program, static_cast<int>(names.size()));
    if (!opened.ok()) return with_context(opened.status(), "GPUs cannot be measured here");
    std::unique_ptr<runtime::Device> device = *std::move(opened);
    std::string name = device->name();
    if (std::find(names.begin(), names.end(), name) != names.end()) break;  // numbers go on from the first again
    names.push_back(std::move(name));
  }
  return names;
}

// What the measured constants are set in.
absl::StatusOr<DeviceProfile> base_profile(const ProfileLibrary& library, const CalibrationRequest& request) {
  std::string name = "cpu";
  if (!request.gpu.empty()) {
    const size_t most = static_cast<size_t>(*std::max_element(request.ranks.begin(), request.ranks.end()));
    PARTITA_ASSIGN_OR_RETURN(const std::vector<std::string> found, gpus(cat("cuda:", request.gpu), most));
    if (found.size() < most)
      return absl::FailedPreconditionError(cat("--ranks ", most, ": expected a GPU for each, found ", found.size(),
                                               ": ", absl::StrJoin(found, ", "), "; calibrate for fewer"));
    name = request.like.empty() ? profile_for(found[0], library.device_names()) : request.like;
    if (name.empty())
      return absl::InvalidArgumentError(
          cat("no built-in profile fits ", found[0],
              "; name the nearest one with --like: ", absl::StrJoin(library.device_names(), ", ")));
  }
  const DeviceProfile* base = library.device(name);
  if (base == nullptr)
    return absl::InvalidArgumentError(
        cat("--like ", quote(name), ": expected one of ", absl::StrJoin(library.device_names(), ", ")));
  return *base;
}

}  // namespace

absl::StatusOr<Calibration> calibrate(const CalibrationRequest& request) {
  PARTITA_ASSIGN_OR_RETURN(ProfileLibrary library, ProfileLibrary::load());
  PARTITA_ASSIGN_OR_RETURN(const DeviceProfile base, base_profile(library, request));
  const bool on_gpus = !request.gpu.empty();
  const int cores = usable_processors();
  Calibration out;
  std::map<int, DeviceProfile> measured;  // by ranks that run at once
  for (int ranks : request.ranks) {
    const int at_once = on_gpus ? ranks : std::min(ranks, cores);
    if (!measured.count(at_once)) {
      PARTITA_ASSIGN_OR_RETURN(measured[at_once],
                               (on_gpus ? measure_gpus : measure_host)(at_once, base, request, out.noise));
    }
    DeviceProfile device = shared_by(measured[at_once], static_cast<double>(ranks) / at_once);
    if (ranks > at_once) append(device.source, ", shared by ", ranks, " ranks");
    device.name = cat("local-", ranks);
    if (!on_gpus) device.memory_bytes = physical_memory() / ranks;
    NodePreset preset{device.name, device.name, "this machine", ranks, "memory", "ethernet", 0, 0};
    if (on_gpus) preset.inner_link = "pcie";  // of one GPU: to none
    if (ranks > 1) {
      request.say(cat(ranks, " ranks: collectives"));
      const RankTeam team = on_gpus ? RankTeam::on_gpus(ranks, cat("cuda:", request.gpu)) : RankTeam::of(ranks);
      PARTITA_ASSIGN_OR_RETURN(LinkFit fit,
                               measure_links(JoinedRanks::of(team), on_gpus ? LinkSizes::of_gpus() : LinkSizes{}));
      fit.link.kind = preset.inner_link = device.name;
      fit.link.source = cat("measured between ", ranks, on_gpus ? " GPUs" : " threads of one process");
      out.noise = std::max(out.noise, fit.noise);
      out.link_error = std::max(out.link_error, fit.error);
      out.profiles.links.push_back(fit.link);
    }
    out.profiles.devices.push_back(std::move(device));
    out.profiles.presets.push_back(std::move(preset));
  }
  return out;
}

}  // namespace partita
