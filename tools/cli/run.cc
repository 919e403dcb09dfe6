#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/cat.h"
#include "base/exit_code.h"
#include "base/status.h"
#include "runtime/bad_value_search.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/stop_signal.h"
#include "runtime/launch/supervisor.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "runtime/program/placement.h"
#include "runtime/program/sides.h"
#include "tools/cli/command.h"

namespace partita {
namespace {

std::string this_program() {
  std::error_code ec;
  return std::filesystem::read_symlink("/proc/self/exe", ec).string();
}

// The ranks in processes of their own, or the whole run in one that may be started again.
absl::Status run_supervised(const runtime::BundleFiles& bundle, const runtime::BundleFiles& plan,
                            const runtime::RunFlags& flags, const LaunchFlags& launch) {
  if (launch.restarts.most > 0 && flags.checkpoint.empty())
    return absl::InvalidArgumentError("--max-restarts starts again from checkpoints; say --checkpoint FOLDER");
  PARTITA_RETURN_IF_ERROR(flags.options(plan).status());  // mistakes are told once, not by each rank
  PARTITA_ASSIGN_OR_RETURN(std::vector<runtime::Program> programs, plan.programs(runtime::kImageName));
  const int64_t ranks = runtime::mesh_size(programs.front().mesh);
  runtime::LocalJob job;
  if (launch.processes) {
    job.ranks = static_cast<int>(ranks);
    job.command = {cat(bundle.folder(), "/", runtime::kRankName), "--backend", "tcp"};
    job.environment = {cat(runtime::kSearcherVariable, "=", this_program())};
    for (const int64_t n : runtime::plans_of(bundle)) job.plans.push_back(static_cast<int>(n));
  } else {
    job.command = {this_program(), "run", bundle.folder(), "--ranks", cat(ranks)};
  }
  for (std::string& a : flags.arguments()) job.command.push_back(std::move(a));
  if (!flags.resume) job.resume = {"--resume"};
  job.restarts = launch.restarts;
  job.records = flags.records();
  runtime::StopSignal signals;
  job.stop = signals.stop();
  job.save = signals.save();
  const absl::Status status = runtime::run_job(job);
  // A run in one process looks itself.
  if (launch.processes && exit_code_of(status) == ExitCode::kDiverged)
    runtime::BadValueSearch(this_program(), plan.folder(), flags, signals.stop()).after_stop();
  return status;
}

}  // namespace

void LaunchFlags::add(CLI::App& app) {
  app.add_flag("--processes", processes, "each rank in a process of its own (over TCP), not as threads of this one");
  add_restarts(app, restarts);
  app.get_option("--keep")->needs(app.get_option("--checkpoint"));
}

void add_restarts(CLI::App& app, runtime::RestartLimits& limits) {
  app.add_option("--max-restarts", limits.most,
                 "start again from the last good checkpoint when a rank is lost, at most this many times")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--restarts-per-hour", limits.per_hour, "and at most so many times within an hour")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
}

void add_ranks(CLI::App& app, std::optional<int64_t>& ranks) {
  app.add_option("--ranks", ranks, "of a bundle with several plans (`compile --also`), run the one for so many ranks")
      ->check(CLI::PositiveNumber);
}

absl::Status run_bundle(const std::string& folder, const runtime::RunFlags& flags, const LaunchFlags& launch) {
  PARTITA_ASSIGN_OR_RETURN(const auto bundle, runtime::BundleFiles::open(folder, flags.trust()));
  PARTITA_RETURN_IF_ERROR(bundle->check(flags.threads_of(1), /*weights=*/false));
  PARTITA_ASSIGN_OR_RETURN(const auto plan,
                           runtime::open_checked_plan(bundle, launch.ranks.value_or(runtime::ranks_of(*bundle)),
                                                      flags.trust(), flags.threads_of(1)));
  if (launch.processes || launch.restarts.most > 0) return run_supervised(*bundle, *plan, flags, launch);
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions options, flags.options(*plan));
  std::optional<runtime::StopSignal> signals;
  if (!options.checkpoint.folder.empty()) options.obey(signals.emplace());
  PARTITA_ASSIGN_OR_RETURN(std::vector<runtime::Program> programs, plan->programs(runtime::kImageName));
  PARTITA_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedPrograms::load(std::move(programs)));
  PARTITA_ASSIGN_OR_RETURN(auto sink, flags.sink(std::max<int64_t>(options.steps, 0)));
  options.ends_process = true;
  runtime::BadValueSearch search(this_program(), plan->folder(), flags, options.stop);
  options.rolled_back = [&search, device = runtime::needs_device(loaded.first())](const runtime::Rollback& r) {
    search.beside(r, device);
  };
  absl::Status status = runtime::train_local(loaded, options, sink.get());
  // What was measured is kept whatever ended the run.
  status.Update(sink->close());
  if (exit_code_of(status) == ExitCode::kDiverged) {
    std::fprintf(stderr, "note: %s\n", std::string(status.message()).c_str());  // before it takes its time
    search.after_stop();
  }
  if (status.ok()) search.wait();
  return status;
}

void add_run(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string bundle;
    runtime::RunFlags run;
    LaunchFlags launch;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("run", "run a bundle with all its ranks as threads of this process");
  verb->add_option("bundle", flags->bundle, "folder that `partita compile` wrote")->required();
  flags->run.add(*verb);
  flags->launch.add(*verb);
  add_ranks(*verb, flags->launch.ranks);
  verb->callback([flags, &result] { result = run_bundle(flags->bundle, flags->run, flags->launch); });
}

}  // namespace partita
