#include "tools/calibrate/measure_job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/host/processors.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/planner/cluster/write_profile.h"
#include "runtime/launch/communicator_factory.h"
#include "runtime/launch/launch_environment.h"
#include "tools/calibrate/job_links.h"

namespace partita {
namespace {

using runtime::LaunchEnvironment;

constexpr const char *kNode = "measured-node", *kNetwork = "measured-network";

// The cost model's levels are nodes of as many ranks each, numbered one node after the other.
absl::Status check_places(runtime::Communicator& communicator, const LaunchEnvironment& launch) {
  int32_t own[] = {launch.local_size, -launch.local_size, launch.rank % launch.local_size == launch.local_rank ? 0 : 1};
  PARTITA_RETURN_IF_ERROR(communicator.run({.kind = runtime::CollectiveKind::kAllReduce,
                                            .dtype = DType::kI32,
                                            .reduce = runtime::ReduceOp::kMax,
                                            .count = 3,
                                            .output = own,
                                            .label = "ranks a node"}));
  if (own[0] != -own[1] || own[2] != 0)
    return absl::FailedPreconditionError(
        cat("expected as many ranks on each node, numbered node by node, found ", -own[1], " to ", own[0], " a node",
            own[2] != 0 ? ", numbered otherwise" : "",
            "; start as many on each (mpirun --map-by ppr:8:node, srun --ntasks-per-node 8)"));
  return absl::OkStatus();
}

void print_fit(const char* name, const LinkFit& fit) {
  std::printf(
      "%-17s %8.3f GB/s a rank and direction, %7.1f us a hop, half of it at %.3g kB, %.1f us of waiting; fitted to "
      "%.0f %%\n",
      name, fit.link.bandwidth / 1e9, fit.link.latency * 1e6, fit.link.half_bytes / 1e3, fit.link.wait_seconds * 1e6,
      fit.error * 100);
}

absl::Status write(const JobRequest& request, JobLinks links, const LaunchEnvironment& launch,
                   const std::string& what) {
  const int nodes = launch.world_size / launch.local_size;
  ProfileSet profiles;
  std::string level;
  auto add = [&](const char* name, std::optional<LinkFit>& fit, const std::string& between, const std::string& key) {
    if (!fit) return;
    fit->link.kind = name;
    fit->link.source = cat("measured between ", between, " over ", what);
    profiles.links.push_back(fit->link);
    append(level, level.empty() ? "" : ", ", "{kind: ", name, key, "}");
    print_fit(name, *fit);
  };
  const std::string ranks = launch.local_size == 1 ? " rank" : " ranks";
  add(kNode, links.node, cat(launch.local_size, " ranks of a node"),
      nodes > 1 ? cat(", group: ", launch.local_size) : "");
  add(kNetwork, links.network, cat(nodes, " nodes of ", launch.local_size, ranks), "");
  const std::string use = cat("plan with --profiles ", request.file, " and, in cluster.yaml, links: [", level, "]");
  PARTITA_RETURN_IF_ERROR(write_file_atomically(
      request.file, cat("# Measured by `partita doctor --links` over ", what, "; noise ",
                        fmt::format("{:.0f} %", links.noise * 100), "\n# ", use, "\n", profile_text(profiles))));
  if (links.error > 0)
    std::printf("collectives of all %d ranks are predicted to %.0f %% by both\n", launch.world_size, links.error * 100);
  std::printf("%s written; noise %.0f %%%s\n%s\n", request.file.c_str(), links.noise * 100,
              links.noise > 0.1 ? " (something else was running: measure again when it is quiet)" : "", use.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::Status measure_job(const JobRequest& request) {
  const std::string& gpu = request.gpu;
  PARTITA_ASSIGN_OR_RETURN(const LaunchEnvironment launch,
                           runtime::parse_launch_environment(runtime::read_environment()));
  if (launch.world_size < 2)
    return absl::FailedPreconditionError(
        "--links measures between the ranks of a job, and this process is alone: start one on each place, as "
        "mpirun -n 2 partita doctor --links links.yaml, or with torchrun --no-python or srun");
  const std::string folder = std::filesystem::path(request.file).parent_path().string();
  const bool writes = launch.rank == 0;
  if (writes && access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)  // told before it is measured
    return absl::NotFoundError(cat(quote(request.file), ": its folder cannot be written to; check the path"));
  runtime::OpenOptions how;
  how.encrypt = request.talk.encrypt, how.interface = request.talk.interface;
  PARTITA_ASSIGN_OR_RETURN(const auto control, runtime::open_communicator(launch, request.talk.backend, how));
  PARTITA_RETURN_IF_ERROR(check_places(*control, launch));
  JobRank rank{.control = control.get(),
               .data = control.get(),
               .per_node = launch.local_size,
               .threads = std::max(1, usable_processors() / launch.local_size)};
  runtime::Program program;
  std::unique_ptr<runtime::Device> device;
  std::unique_ptr<runtime::Communicator> of_device;
  if (!gpu.empty()) {
    program.target = cat("cuda:", gpu);
    PARTITA_ASSIGN_OR_RETURN(device, runtime::open_device(program, launch.device));
    PARTITA_ASSIGN_OR_RETURN(of_device, device->communicator(*control));
    rank.data = of_device.get(), rank.device = device.get(), rank.program = &program;
  }
  TimingLimits limits;
  // Long beside the bursts that a network lets through, and beside the turns that ranks take on a host's cores.
  limits.round_seconds = 0.02;
  limits.rounds = request.rounds;
  PARTITA_ASSIGN_OR_RETURN(JobLinks links, measure_job_links(rank, gpu.empty() ? LinkSizes{} : LinkSizes::of_gpus(),
                                                             limits, [&](const std::string& what) {
                                                               if (writes)
                                                                 std::fprintf(stderr, "measuring %s\n", what.c_str());
                                                             }));
  if (!writes) return absl::OkStatus();
  return write(request, std::move(links), launch, std::string(rank.data->backend()));
}

}  // namespace partita
