#include "runtime/train/trainer.h"

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "base/exit_code.h"
#include "base/status.h"
#include "runtime/audit/recording_communicator.h"
#include "runtime/bind/bind_rank.h"
#include "runtime/checkpoint/state_files.h"
#include "runtime/communicate/lost_ranks.h"
#include "runtime/communicate/measured_communicator.h"
#include "runtime/execute/team_size.h"
#include "runtime/launch/last_start.h"
#include "runtime/launch/rank_end.h"
#include "runtime/program/placement.h"
#include "runtime/program/sides.h"
#include "runtime/train/training_loop.h"
#include "runtime/transports/collective_threads.h"

namespace partita::runtime {
namespace {

// A rank that is a thread of this process.
struct LocalRank {
  std::unique_ptr<FlightRecorder> recorder;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<RankWatch> watch;
};

absl::StatusOr<LocalRank> open_local(const TrainOptions& options, int rank, int ranks, ThreadWorld& world) {
  LocalRank local;
  const std::string path = options.records.empty() ? "" : flight_file(options.records, rank);
  PARTITA_ASSIGN_OR_RETURN(local.recorder, FlightRecorder::create(path, rank, ranks));
  if (ranks > 1) {
    PARTITA_ASSIGN_OR_RETURN(local.communicator, world.communicator(rank, local.recorder.get()));
  }
  std::function<void(const absl::Status&)> give_up;
  if (options.ends_process)
    give_up = [&recorder = *local.recorder](const absl::Status& why) { end_process(recorder, why); };
  local.watch = std::make_unique<RankWatch>(*local.recorder, options.timeouts, std::move(give_up));
  return local;
}

// Binds a rank to its cores, and says so: its threads, one where the program may be too small for more. One that is
// alone finds out (TeamChoice).
absl::StatusOr<int> bind_team(const Program& program, Communicator* communicator, const TrainOptions& options,
                              int device) {
  PARTITA_ASSIGN_OR_RETURN(const RankBinding binding,
                           bind_rank(communicator, options.bind, needs_device(program) ? device : -1));
  if (options.tell && !binding.said.empty())
    std::fprintf(stderr, "rank %d: %s\n", communicator != nullptr ? communicator->rank() : 0, binding.said.c_str());
  const int threads = options.threads > 0 ? options.threads : binding.threads;
  return communicator == nullptr ? threads : team_size(program, threads);
}

// One rank of a run, watched, on device `device` of this host. `watch` outlives it.
absl::Status train_watched(std::shared_ptr<const LoadedProgram> loaded, Communicator* communicator,
                           const TrainOptions& options, MetricsSink* sink, int device, RankWatch& watch) {
  // They outlive abort(): what is under way reads and writes their memory.
  std::optional<MeasuredCommunicator> measured;
  std::optional<RecordingCommunicator> recorder;
  std::unique_ptr<CheckAhead> ahead;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<TrainingLoop> loop;
  if (communicator != nullptr) measured.emplace(*communicator);
  if (options.audit > 0 && communicator != nullptr) recorder.emplace(*measured);
  Communicator* of_steps = recorder ? static_cast<Communicator*>(&*recorder) : measured ? &*measured : nullptr;
  auto run = [&]() -> absl::Status {
    PARTITA_RETURN_IF_ERROR(watch.join(communicator));
    PARTITA_ASSIGN_OR_RETURN(const int threads, bind_team(loaded->program, communicator, options, device));
    ahead = check_first_values(
        loaded->program, mesh_coordinates(loaded->program.mesh, communicator != nullptr ? communicator->rank() : 0),
        {options.initial, options.seed, threads});
    PARTITA_ASSIGN_OR_RETURN(executor, Executor::create(loaded, of_steps,
                                                        {.threads = threads,
                                                         .profile = !options.profile.empty(),
                                                         .observer = options.observer,
                                                         .recorder = &watch.recorder(),
                                                         .device = device,
                                                         .tune = options.tune,
                                                         .open_device = [&](const Program& p, int ordinal) {
                                                           return open_device_from(options.plugins, p, ordinal);
                                                         }}));
    loop = make_training_loop({*executor, communicator, of_steps, measured ? &*measured : nullptr,
                               recorder ? &*recorder : nullptr, options, threads, watch});
    return loop->run(sink);
  };
  absl::Status status = run();
  if (const absl::Status verdict = watch.verdict(); !status.ok() && !verdict.ok()) status = verdict;
  record_end(watch.recorder(), status);
  // All ranks end alike where a run diverged, or was told to stop: none has to be told, and some may be about to read
  // the last message.
  const bool agreed = status.ok() || exit_code_of(status) == ExitCode::kDiverged || absl::IsCancelled(status);
  if (!agreed && communicator != nullptr)
    communicator->abort(with_code(cat("rank ", communicator->rank(), ": ", status.message()), end_code(status)));
  watch.leave();
  return status;
}

}  // namespace

absl::Status train_rank(std::shared_ptr<const LoadedProgram> loaded, Communicator* communicator,
                        const TrainOptions& options, MetricsSink* sink) {
  if (options.watch != nullptr)
    return train_watched(std::move(loaded), communicator, options, sink, options.device, *options.watch);
  const int rank = communicator != nullptr ? communicator->rank() : 0;
  PARTITA_ASSIGN_OR_RETURN(const auto recorder,
                           FlightRecorder::create("", rank, communicator != nullptr ? communicator->size() : 1));
  RankWatch watch(*recorder, options.timeouts);
  return train_watched(std::move(loaded), communicator, options, sink, options.device, watch);
}

absl::Status train_local(const LoadedPrograms& loaded, const TrainOptions& options, MetricsSink* sink) {
  const auto ranks = static_cast<int>(mesh_size(loaded.first().mesh));
  say(stderr, take_last_start(options.records, 0));
  ThreadWorld world(ranks);
  std::vector<LocalRank> locals;
  for (int r = 0; r < ranks; ++r) {
    PARTITA_ASSIGN_OR_RETURN(LocalRank local, open_local(options, r, ranks, world));
    locals.push_back(std::move(local));
  }
  if (ranks == 1) return train_watched(loaded.of(0), nullptr, options, sink, 0, *locals[0].watch);
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> team;
  for (int r = 0; r < ranks; ++r) {
    team.emplace_back([&, r] {
      const LocalRank& local = locals[static_cast<size_t>(r)];
      results[static_cast<size_t>(r)] =
          train_watched(loaded.of(r), local.communicator.get(), options, r == 0 ? sink : nullptr, r, *local.watch);
    });
  }
  for (std::thread& t : team) t.join();
  return with_root_cause(outcome_of(results), *locals[0].watch);
}

}  // namespace partita::runtime
