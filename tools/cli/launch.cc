#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/launch/job_secret.h"
#include "runtime/launch/shell_words.h"
#include "runtime/launch/stop_signal.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "runtime/program/placement.h"
#include "runtime/program/sides.h"
#include "runtime/talk_flags.h"
#include "runtime/transports/host_address.h"
#include "tools/cli/command.h"
#include "tools/launch/hosts_file.h"
#include "tools/launch/kubernetes_manifest.h"
#include "tools/launch/remote_ranks.h"
#include "tools/launch/scheduler_commands.h"

namespace partita {
namespace {

struct Flags {
  std::string bundle;
  runtime::RunFlags run;
  runtime::TalkFlags talk;
  bool local = false, slurm = false, torchrun = false, mpi = false, kubernetes = false, dry_run = false;
  std::string hosts_file, ssh = "ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15", master, image;
  std::vector<std::string> slurm_options, claims;
  int nodes = 1, node_rank = 0, port = 29500;
  runtime::RestartLimits restarts;
  std::optional<int64_t> ranks;

  void add(CLI::App& verb);
};

void Flags::add(CLI::App& verb) {
  verb.add_option("bundle", bundle, "folder that `partita compile` wrote, at this path on all hosts")->required();
  verb.add_flag("--local", local, "as processes of this host (the default)");
  verb.add_option("--hosts", hosts_file, "over ssh on the hosts of this file, or by mpirun with --mpi: `NAME slots=N`")
      ->check(CLI::ExistingFile);
  verb.add_flag("--slurm", slurm, "by a script for Slurm: sbatch takes it, srun starts the ranks");
  verb.add_flag("--torchrun", torchrun, "by torchrun; on several hosts say this on each, with --node-rank");
  verb.add_flag("--mpi", mpi, "by Open MPI's mpirun");
  verb.add_flag("--k8s", kubernetes, "print a JobSet for `kubectl apply -f -`: it starts a pod for each of --nodes");
  verb.add_flag("--dry-run", dry_run, "print what would be done, and do nothing");
  verb.add_option("--nodes", nodes, "hosts, with equally many ranks each (Slurm, torchrun, Kubernetes)")
      ->check(CLI::PositiveNumber);
  verb.add_option("--node-rank", node_rank, "which of them this is (torchrun)")->check(CLI::NonNegativeNumber);
  verb.add_option("--master", master, "the first host's address (torchrun)");
  verb.add_option("--port", port, "of rank 0, for ranks of several hosts")->check(CLI::Range(1, 65535));
  verb.add_option("--ssh", ssh, "what to start ranks of --hosts with");
  verb.add_option("--image", image, "container image that holds the bundle at its path (Kubernetes)");
  verb.add_option("--claim", claims, "a persistent volume claim and where it is mounted, CLAIM:PATH (Kubernetes)")
      ->allow_extra_args(false);
  verb.add_option("--slurm-option", slurm_options, "a further line for sbatch, such as --partition=gpu")
      ->allow_extra_args(false);
  add_restarts(verb, restarts);
  add_ranks(verb, ranks);
  run.add(verb);
  verb.get_option("--keep")->needs(verb.get_option("--checkpoint"));
  talk.add(verb);
}

std::string here() {
  std::error_code ignored;
  return std::filesystem::current_path(ignored).string();
}

std::vector<int> plans_up_to(const runtime::BundleFiles& bundle, int64_t ranks) {
  std::vector<int> plans;
  for (const int64_t n : runtime::plans_of(bundle)) {
    if (n <= ranks) plans.push_back(static_cast<int>(n));
  }
  return plans;
}

absl::StatusOr<LaunchJob> job_of(const Flags& flags) {
  const int ways = flags.local + flags.slurm + flags.torchrun + flags.mpi + flags.kubernetes +
                   (!flags.hosts_file.empty() && !flags.mpi);
  if (ways > 1)
    return absl::InvalidArgumentError(
        "one of --local, --hosts, --slurm, --torchrun, --k8s, --mpi (which takes --hosts)");
  PARTITA_ASSIGN_OR_RETURN(const auto bundle, runtime::BundleFiles::open(flags.bundle, flags.run.trust()));
  PARTITA_RETURN_IF_ERROR(bundle->check(flags.run.threads_of(1), /*weights=*/false));
  PARTITA_ASSIGN_OR_RETURN(const auto plan,
                           runtime::open_checked_plan(bundle, flags.ranks.value_or(runtime::ranks_of(*bundle)),
                                                      flags.run.trust(), flags.run.threads_of(1)));
  PARTITA_RETURN_IF_ERROR(flags.run.options(*plan).status());  // mistakes are told once, not by each rank
  if (flags.restarts.most > 0 && flags.run.checkpoint.empty())
    return absl::InvalidArgumentError("--max-restarts starts again from checkpoints; say --checkpoint FOLDER");
  std::error_code ignored;
  LaunchJob job{.command = {},
                .resume = {},
                .ranks = static_cast<int>(runtime::ranks_of(*plan)),
                .plans = plans_up_to(*bundle, runtime::ranks_of(*plan)),
                .nodes = flags.nodes,
                .folder = here(),
                .port = flags.port,
                .checkpoints = flags.run.checkpoint,
                .records = flags.run.records(),
                .restarts = flags.restarts};
  if (job.ranks % job.nodes != 0)
    return absl::InvalidArgumentError(
        cat("the bundle's ", job.ranks, " ranks do not divide among ", job.nodes, " hosts"));
  job.command = {cat(std::filesystem::canonical(bundle->folder(), ignored).string(), "/", runtime::kRankName)};
  for (const auto& list : {flags.run.arguments(), flags.talk.arguments()})
    job.command.insert(job.command.end(), list.begin(), list.end());
  if (!flags.run.checkpoint.empty() && !flags.run.resume) job.resume = {"--resume"};
  return job;
}

// The file that ranks of other hosts read their secret from: the environment's, or one that is made here, which they
// see at the same path.
absl::StatusOr<std::string> secret_file(const Flags& flags) {
  const runtime::EnvironmentMap environment = runtime::read_environment();
  if (const auto at = environment.find(runtime::kSecretFileVariable); at != environment.end()) return at->second;
  const std::string path = cat(here(), "/.partita_secret");
  std::error_code ignored;
  if (flags.dry_run || std::filesystem::exists(path, ignored)) return path;
  PARTITA_ASSIGN_OR_RETURN(const std::string secret, runtime::make_job_secret());
  const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0 && errno == EEXIST) return path;  // by another node's, just now
  if (file < 0) return file_error("write", path, errno);
  const ssize_t written = ::write(file, secret.data(), secret.size());
  ::close(file);
  if (written != static_cast<ssize_t>(secret.size())) return file_error("write", path, EIO);
  return path;
}

absl::Status print_kubernetes(const Flags& flags, const LaunchJob& job) {
  if (flags.image.empty()) return absl::InvalidArgumentError("--k8s needs --image, which holds the bundle");
  for (const std::string& claim : flags.claims) {
    if (claim.find(":/") == std::string::npos || claim.find(":/") == 0)
      return absl::InvalidArgumentError(cat("--claim ", quote(claim), " is not CLAIM:/PATH"));
  }
  const std::filesystem::path folder = std::filesystem::path(job.command[0]).parent_path();
  PARTITA_ASSIGN_OR_RETURN(const auto bundle, runtime::BundleFiles::open(folder.string()));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<runtime::Program> programs, bundle->programs(runtime::kImageName));
  PARTITA_ASSIGN_OR_RETURN(const std::string secret, runtime::make_job_secret());
  const KubernetesJob kubernetes{dns_label(folder.filename().string()), flags.image, secret,
                                 runtime::needs_device(programs.front()), flags.claims};
  std::printf("%s", kubernetes_manifest(job, kubernetes).c_str());
  return absl::OkStatus();
}

// In place of this process; `input` becomes its standard input.
absl::Status become(std::vector<std::string> words, const std::string& input = "") {
  if (!input.empty()) {
    const int file = ::memfd_create("script", 0);
    if (file < 0 || ::write(file, input.data(), input.size()) != static_cast<ssize_t>(input.size()) ||
        ::lseek(file, 0, SEEK_SET) != 0 || ::dup2(file, 0) != 0)
      return file_error("write a script for", words[0], errno);
  }
  std::fflush(nullptr);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  return file_error("start", words[0], errno);
}

absl::Status start_or_say(const Flags& flags, std::vector<std::string> words) {
  if (!flags.dry_run) return become(std::move(words));
  std::printf("%s\n", shell_line(words).c_str());
  return absl::OkStatus();
}

// As many as the ranks need; of a bundle with several plans all, for those to come after one that is lost.
absl::StatusOr<std::vector<Host>> read_hosts(const Flags& flags, const LaunchJob& job) {
  if (flags.hosts_file.empty()) return std::vector<Host>();
  PARTITA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(flags.hosts_file));
  PARTITA_ASSIGN_OR_RETURN(std::vector<Host> hosts, parse_hosts(std::string(file.text()), flags.hosts_file));
  if (job.plans.size() > 1 && !flags.mpi) return hosts;
  return hosts_for(std::move(hosts), job.ranks);
}

absl::Status launch_over_ssh(const Flags& flags, LaunchJob job, std::vector<Host> hosts) {
  if (flags.talk.backend == "auto") job.command.insert(job.command.end(), {"--backend", "tcp"});
  std::vector<std::string> ssh;
  std::istringstream words(flags.ssh);
  for (std::string word; words >> word;) ssh.push_back(word);
  if (ssh.empty()) return absl::InvalidArgumentError("--ssh names no program");
  if (flags.dry_run) {
    PARTITA_ASSIGN_OR_RETURN(hosts, hosts_for(std::move(hosts), job.ranks));
    size_t host = 0;
    for (int rank = 0, used = 0; rank < job.ranks; ++rank, ++used) {
      if (used == hosts[host].slots) ++host, used = 0;
      std::vector<std::string> line = ssh;
      line.insert(line.end(), {hosts[host].name, remote_rank_line(job, hosts, rank, false)});
      std::printf("%s\n", shell_line(line).c_str());
    }
    return absl::OkStatus();
  }
  PARTITA_ASSIGN_OR_RETURN(const std::string secret, runtime::make_job_secret());
  runtime::StopSignal stop;
  return run_on_hosts(job, hosts, ssh, secret, stop.stop());
}

absl::Status launch(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(LaunchJob job, job_of(flags));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<Host> hosts, read_hosts(flags, job));
  if (flags.mpi) {
    const bool tcp = flags.talk.backend == "tcp";
    if (tcp && hosts.size() > 1) {
      PARTITA_ASSIGN_OR_RETURN(job.secret_file, secret_file(flags));
    }
    return start_or_say(flags, mpirun_command(job, hosts, tcp));
  }
  if (!hosts.empty()) return launch_over_ssh(flags, std::move(job), hosts);
  if (flags.torchrun) {
    if (job.nodes > 1 && flags.master.empty())
      return absl::InvalidArgumentError("--torchrun on several hosts needs --master, the first one's address");
    if (job.nodes > 1) {
      PARTITA_ASSIGN_OR_RETURN(job.secret_file, secret_file(flags));
      ::setenv(runtime::kSecretFileVariable, job.secret_file.c_str(), 1);
    }
    // A host's own name need not mean it to others. Where commands are made on another host, the name has to do.
    const auto address = runtime::address_towards(flags.master);
    return start_or_say(flags, torchrun_command(job, flags.master, flags.node_rank, address.value_or("")));
  }
  if (flags.kubernetes) return print_kubernetes(flags, job);
  if (flags.slurm) {
    if (job.nodes > 1) {
      PARTITA_ASSIGN_OR_RETURN(job.secret_file, secret_file(flags));
    }
    const std::string name = std::filesystem::path(job.command[0]).parent_path().filename().string();
    if (cat(name, job.folder).find('\n') != std::string::npos)
      return absl::InvalidArgumentError(cat("the bundle's name and the folder, ", quote(job.folder),
                                            ", go into lines of a script for sbatch, and hold a line break; rename "
                                            "them, or link to them from another folder"));
    const std::string script = slurm_script(job, name, flags.slurm_options);
    if (!flags.dry_run) return become({"sbatch"}, script);
    std::printf("%s", script.c_str());
    return absl::OkStatus();
  }
  if (flags.dry_run) {
    for (int rank = 0; rank < job.ranks; ++rank) {
      std::vector<std::string> line = {cat("RANK=", rank),
                                       cat("LOCAL_RANK=", rank),
                                       cat("WORLD_SIZE=", job.ranks),
                                       cat("LOCAL_WORLD_SIZE=", job.ranks),
                                       "MASTER_ADDR=127.0.0.1",
                                       cat("MASTER_PORT=", job.port)};
      line.insert(line.end(), job.command.begin(), job.command.end());
      std::printf("%s\n", shell_line(line).c_str());
    }
    return absl::OkStatus();
  }
  return run_bundle(flags.bundle, flags.run, {.processes = true, .restarts = flags.restarts, .ranks = flags.ranks});
}

}  // namespace

void add_launch(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("launch", "start a bundle's ranks, on this host or through a scheduler's own tools");
  flags->add(*verb);
  verb->callback([flags, &result] { result = launch(*flags); });
}

}  // namespace partita
