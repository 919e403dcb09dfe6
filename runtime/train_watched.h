// One rank of a run, watched: what trainer.h's functions start.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "runtime/communicate/collective.h"
#include "runtime/trainer.h"

namespace partita::runtime {

// As train_rank(), with so many threads (one where the program is too small for more), on device `device` of this host.
// `watch` outlives it.
absl::Status train_watched(std::shared_ptr<const LoadedProgram> loaded, Communicator* communicator,
                           const TrainOptions& options, MetricsSink* sink, int threads, int device, RankWatch& watch);

}  // namespace partita::runtime
