// The runner: as `rank` in a bundle, the executable of a rank. It reads the bundle that it lies in, and finds out which
// rank it is from whoever launched it.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>

#include "CLI/CLI.hpp"
#include "base/cat.h"
#include "base/exit_code.h"
#include "base/fault.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/bad_value_search.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/kernels/onednn.h"
#include "runtime/launch/communicator_factory.h"
#include "runtime/launch/last_start.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/rank_end.h"
#include "runtime/launch/spinning.h"
#include "runtime/launch/stop_signal.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "runtime/program/placement.h"
#include "runtime/program/sides.h"
#include "runtime/run_flags.h"
#include "runtime/talk_flags.h"

namespace partita::runtime {
namespace {

constexpr const char* kSelf = "/proc/self/exe";

// The bundle that this executable lies in, every file of it checked but the first weights: a rank reads its own parts
// of those. The libraries that were loaded before main() are among them.
absl::StatusOr<std::shared_ptr<const BundleFiles>> open_own_bundle(const RunFlags& flags, int threads) {
  std::error_code ec;
  const std::string folder = std::filesystem::read_symlink(kSelf, ec).parent_path().string();
  PARTITA_ASSIGN_OR_RETURN(const auto bundle, BundleFiles::open(folder, flags.trust()));
  PARTITA_RETURN_IF_ERROR(bundle->check(threads, /*weights=*/false));
  PARTITA_RETURN_IF_ERROR(with_context(bundle->check_copy(kRankName, kSelf), quote(kRankName)));
  return bundle;
}

// The plan for the ranks that were started, checked. Where there is none, another start may find others, unless nobody
// started them.
absl::StatusOr<SharedBundle> plan_for(const SharedBundle& bundle, const LaunchEnvironment& launch,
                                      const BundleTrust& trust, int threads) {
  auto plan = open_checked_plan(bundle, launch.world_size, trust, threads);
  if (plan.ok() || plan.status().code() != absl::StatusCode::kUnavailable || launch.kind != LaunchKind::kSingle)
    return plan;
  return absl::FailedPreconditionError(cat(plan.status().message(), "; start it with mpirun -n ", ranks_of(*bundle),
                                           " ", bundle->folder(), "/", kRankName));
}

// A rank receives nothing that has no place there.
int64_t memory_of(const Program& program) {
  return std::accumulate(std::begin(program.region_bytes), std::end(program.region_bytes), int64_t{0});
}

// The rank, as its launcher started it.
struct Rank {
  LaunchEnvironment launch;
  std::FILE* console = stderr;
  std::unique_ptr<FlightRecorder> recorder;
  std::unique_ptr<RankWatch> watch;
  std::optional<StopSignal> signals;
};

absl::Status open_record(const RunFlags& flags, Rank& rank) {
  const LaunchEnvironment& launch = rank.launch;
  const std::string folder = flags.records(), path = folder.empty() ? "" : flight_file(folder, launch.rank);
  if (launch.record >= 0) {
    ::fcntl(launch.record, F_SETFD, FD_CLOEXEC);
    PARTITA_ASSIGN_OR_RETURN(rank.recorder, FlightRecorder::open(launch.record, path, launch.rank, launch.world_size));
  } else {
    PARTITA_ASSIGN_OR_RETURN(rank.recorder,
                             FlightRecorder::create(path, launch.rank, launch.world_size, FormerRecord::kIsKept));
  }
  rank.recorder->adopt_thread();
  PARTITA_ASSIGN_OR_RETURN(const Timeouts said, flags.limits(nlohmann::json::object()));
  rank.watch = std::make_unique<RankWatch>(*rank.recorder, said, [&rank](const absl::Status& why) {
    ::_exit(tell_end(why, rank.launch, *rank.watch, rank.console));
  });
  // Its record says so, too, to those who look for the cause.
  static Rank* reader = nullptr;
  reader = &rank;
  end_on_lost_files([](const LostFile& file) {
    ::_exit(tell_end(lost_file_error(file), reader->launch, *reader->watch, reader->console));
  });
  // A rank that was started by hand may outlive its shell.
  if (launch.kind == LaunchKind::kOpenMpi || launch.job_id.starts_with("torchrun ")) rank.watch->end_with_parent();
  return absl::OkStatus();
}

// A launcher that has lost a rank elsewhere ends this one in a moment; it says where it was, if it gets nowhere.
void tell_stuck(const Rank& rank, int signal) {
  const auto& waiting = rank.recorder->header().waiting;
  const uint64_t before = waiting;
  if (before == 0 || rank.launch.record >= 0) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  if (waiting != before) return;
  std::fprintf(rank.console, "partita: rank %d: told to stop by signal %d; %s\n", rank.launch.rank, signal,
               rank.watch->where().c_str());
}

// Before any other thread is started. A launcher that ends all ranks because one is lost tells them to stop too.
void hear_signals(const RunFlags& flags, Rank& rank) {
  const bool saves = !flags.checkpoint.empty();
  rank.signals.emplace([&rank, saves](int signal) {
    if (rank.watch == nullptr) ::_exit(kFirstRetryCode + signal);
    record_stop(*rank.watch);
    if (const std::optional<int> lost = rank.watch->lost_peer())
      ::_exit(tell_end(absl::UnavailableError(cat("lost rank ", *lost)), rank.launch, *rank.watch, rank.console));
    const bool started = rank.recorder->header().phase != Phase::kStart;
    if (saves && started) return tell_stuck(rank, signal);
    const absl::Status told = absl::CancelledError(cat("told to stop by signal ", signal, "; ", rank.watch->where()));
    ::_exit(tell_end(told, rank.launch, *rank.watch, rank.console));
  });
}

absl::Status run(const RunFlags& flags, const TalkFlags& talk, Rank& rank) {
  PARTITA_ASSIGN_OR_RETURN(rank.launch, parse_launch_environment(read_environment()));
  const LaunchEnvironment& launch = rank.launch;
  if (!flags.log_folder.empty()) {
    PARTITA_ASSIGN_OR_RETURN(rank.console, log_output(flags.log_folder, launch.rank));
  }
  hear_signals(flags, rank);
  PARTITA_RETURN_IF_ERROR(open_record(flags, rank));
  const int threads = flags.threads_of(launch.local_size);
  PARTITA_ASSIGN_OR_RETURN(const auto bundle, open_own_bundle(flags, threads));
  PARTITA_ASSIGN_OR_RETURN(const auto plan, plan_for(bundle, launch, flags.trust(), threads));
  PARTITA_ASSIGN_OR_RETURN(std::vector<Program> programs, programs_of(*plan));
  PARTITA_ASSIGN_OR_RETURN(TrainOptions options, flags.options(*plan));
  rank.watch->limit(options.timeouts);
  options.device = launch.device;
  options.plugins = {{}, bundle};
  options.watch = rank.watch.get();
  BadValueSearch search(launch.searcher, plan->folder(), flags, rank.signals->stop());
  options.rolled_back = [&search, device = needs_device(programs.front())](const Rollback& r) {
    search.beside(r, device);
  };
  if (!options.checkpoint.folder.empty()) options.obey(*rank.signals);
  const size_t stage = static_cast<size_t>(stage_of(programs.front().mesh, launch.rank));
  PARTITA_ASSIGN_OR_RETURN(auto loaded, LoadedProgram::load(std::move(programs[stage])));
  std::unique_ptr<Communicator> communicator;
  if (launch.world_size > 1) {
    const CommunicatorOptions limits{.timeout = TimeLimits(options.timeouts).of(Phase::kStart),
                                     .recorder = rank.recorder.get()};
    const OpenOptions how{limits, options.plugins, talk.encrypt, talk.interface, memory_of(loaded->program)};
    if (how.encrypt && !launch.one_host() && needs_device(loaded->program))
      return absl::FailedPreconditionError("NCCL does not encrypt what GPUs send each other: run without --encrypt");
    PARTITA_ASSIGN_OR_RETURN(communicator, open_communicator(launch, talk.backend, how));
    PARTITA_RETURN_IF_ERROR(communicator->agree("the bundle", as_byte_span(plan->root())));
  }
  // All have their records now, and have put away what they found in their place.
  if (launch.rank == 0 && launch.record < 0) say(rank.console, take_last_start(flags.records(), launch.world_size));
  absl::StatusOr<std::unique_ptr<MetricsSink>> opened = nullptr;
  if (launch.rank == 0)
    opened = flags.sink(std::max<int64_t>(options.steps, 0), rank.console == stderr ? nullptr : rank.console);
  PARTITA_RETURN_IF_ERROR(all_ok(communicator.get(), opened.status(), "opening the metrics"));
  const std::unique_ptr<MetricsSink> sink = *std::move(opened);
  const absl::Status trained = train_rank(loaded, communicator.get(), options, sink.get());
  // Where nobody of ours is left to look for it when all ranks have ended.
  if (launch.rank == 0 && launch.searcher.empty() && exit_code_of(trained) == ExitCode::kDiverged) search.after_stop();
  PARTITA_RETURN_IF_ERROR(trained);
  search.wait();
  return sink ? sink->close() : absl::OkStatus();
}

int finish(const absl::Status& status, Rank& rank) {
  if (rank.watch != nullptr) return tell_end(status, rank.launch, *rank.watch, rank.console);
  if (!status.ok()) std::fprintf(stderr, "partita: %s\n", std::string(status.message()).c_str());
  return exit_code(status);
}

}  // namespace
}  // namespace partita::runtime

int main(int argc, char** argv) {
  using namespace partita::runtime;
  hold_save_signal();
  limit_spinning(argv);
  partita::exit_on_uncaught();
  prepare_onednn(chooses_onednn_instructions(read_environment()));
  CLI::App app{
      "A rank of a compiled Partita program. Start as many as the bundle is for, with mpirun, srun or torchrun."};
  RunFlags flags;
  TalkFlags talk;
  flags.add(app);
  talk.add(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : static_cast<int>(partita::ExitCode::kUsage);
  }
  Rank rank;
  absl::Status status;
  try {
    status = run(flags, talk, rank);
  } catch (...) {
    status = partita::status_of_exception();
  }
  return finish(status, rank);
}
