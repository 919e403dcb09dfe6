// The wait for samples that are still to come: ranks that have theirs wait with those that have not, before the step
// lasts. A step that has begun cannot be left; so long as none has, the run can save and leave at once.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/execute/input_stage.h"
#include "runtime/launch/rank_watch.h"

namespace partita::runtime {

// What a rank was told from outside; of all ranks, what any was.
struct Wishes {
  bool stop = false, save = false;
};

// Collective (null: one rank): until every rank has its batch of a step; or, with what any rank wishes, before that.
// `lasts` is called on every rank once that has taken a second or so. The time limit of the phase `data` is that of
// the ranks whose batch is not there.
absl::StatusOr<Wishes> wait_for_batch(InputStage& inputs, int64_t step, int64_t batch, Communicator* communicator,
                                      RankWatch& watch, const std::function<Wishes()>& wishes,
                                      const std::function<absl::Status()>& begins);

}  // namespace partita::runtime
