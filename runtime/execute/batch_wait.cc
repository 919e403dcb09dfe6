#include "runtime/execute/batch_wait.h"

#include <chrono>

#include "base/status.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/communicate/work_together.h"

namespace partita::runtime {

constexpr int kLong = 50;  // turns, a second or so

absl::StatusOr<Wishes> wait_for_batch(InputStage& inputs, int64_t step, int64_t batch, Communicator* communicator,
                                      RankWatch& watch, const std::function<Wishes()>& wishes,
                                      const std::function<absl::Status()>& lasts) {
  const auto since = std::chrono::steady_clock::now();
  watch.enter(Phase::kData, step);
  for (int turn = 0;; ++turn) {
    const bool there = inputs.ready_within(batch, turn == 0 ? std::chrono::milliseconds(0) : kTurn);
    if (there) watch.enter(Phase::kStep, step);  // it is late with nothing
    const Wishes mine = wishes();
    int64_t all[] = {!there, mine.stop, mine.save};
    PARTITA_RETURN_IF_ERROR(all_reduce(communicator, all, ReduceOp::kMax, "whether every rank has its samples"));
    if (all[0] == 0 || all[1] != 0 || all[2] != 0) {
      inputs.add_stall(std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count());
      return all[0] == 0 ? Wishes{} : Wishes{all[1] != 0, all[2] != 0};
    }
    if (turn != kLong) continue;
    PARTITA_RETURN_IF_ERROR(lasts());
    watch.enter(Phase::kData, step);
  }
}

}  // namespace partita::runtime
