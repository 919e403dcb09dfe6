#include "runtime/trainer.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/host/processors.h"
#include "base/status.h"
#include "runtime/launch/rank_end.h"
#include "runtime/program/placement.h"
#include "runtime/train_watched.h"
#include "runtime/transports/collective_threads.h"

namespace partita::runtime {
namespace {

int threads_per_rank(const TrainOptions& options, int64_t ranks_here) {
  if (options.threads > 0) return options.threads;
  return static_cast<int>(std::max<int64_t>(1, usable_processors() / std::max<int64_t>(1, ranks_here)));
}

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
  if (options.ends_process) give_up = [rank](const absl::Status& why) { end_process(rank, why); };
  local.watch = std::make_unique<RankWatch>(*local.recorder, options.timeouts, std::move(give_up));
  return local;
}

}  // namespace

absl::Status train_rank(std::shared_ptr<const LoadedProgram> loaded, Communicator* communicator,
                        const TrainOptions& options, MetricsSink* sink) {
  const int threads = threads_per_rank(options, 1);
  if (options.watch != nullptr)
    return train_watched(std::move(loaded), communicator, options, sink, threads, options.device, *options.watch);
  const int rank = communicator != nullptr ? communicator->rank() : 0;
  PARTITA_ASSIGN_OR_RETURN(const auto recorder,
                           FlightRecorder::create("", rank, communicator != nullptr ? communicator->size() : 1));
  RankWatch watch(*recorder, options.timeouts);
  return train_watched(std::move(loaded), communicator, options, sink, threads, options.device, watch);
}

absl::Status train_local(const LoadedPrograms& loaded, const TrainOptions& options, MetricsSink* sink) {
  int ranks = static_cast<int>(mesh_size(loaded.first().mesh)), threads = threads_per_rank(options, ranks);
  ThreadWorld world(ranks);
  std::vector<LocalRank> locals;
  for (int r = 0; r < ranks; ++r) {
    PARTITA_ASSIGN_OR_RETURN(LocalRank local, open_local(options, r, ranks, world));
    locals.push_back(std::move(local));
  }
  if (ranks == 1) return train_watched(loaded.of(0), nullptr, options, sink, threads, 0, *locals[0].watch);
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> team;
  for (int r = 0; r < ranks; ++r) {
    team.emplace_back([&, r] {
      const LocalRank& local = locals[static_cast<size_t>(r)];
      results[static_cast<size_t>(r)] = train_watched(loaded.of(r), local.communicator.get(), options,
                                                      r == 0 ? sink : nullptr, threads, r, *local.watch);
    });
  }
  for (std::thread& t : team) t.join();
  return with_root_cause(outcome_of(results), *locals[0].watch);
}

}  // namespace partita::runtime
