#include "partitioner/planner/cost/memory/chunk_slots.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "partitioner/layout/slot_classes.h"

namespace partita {
namespace {

// The most micro-batches that some chunks of a stage have in flight, as stage_order() has them come and go.
class InFlight {
 public:
  InFlight(int64_t chunks, int64_t stages, int64_t stage, int64_t micro_batches)
      : chunks_(chunks), stages_(stages), total_(micro_batches * chunks) {
    ahead_ = std::min(2 * (stages - stage - 1) + (chunks - 1) * stages, total_);
  }

  // Of `marked` chunks. Numbers in flight rise and fall evenly but where a pass comes to the next chunk.
  int64_t most(std::span<const size_t> marked) {
    before_.assign(static_cast<size_t>(chunks_) + 1, 0);
    for (size_t c : marked) before_[c + 1] = 1;
    std::partial_sum(before_.begin(), before_.end(), before_.begin());
    int64_t most = 0;
    const int64_t round = std::min(chunks_ * stages_, std::max<int64_t>(0, total_ - ahead_ - 1));
    for (int64_t chunk = 0; chunk <= chunks_; ++chunk) {
      const int64_t backward = chunk * stages_, forward = backward - (ahead_ + 1) % stages_;
      for (int64_t t : {backward, forward}) {
        t = std::clamp<int64_t>(t, 0, round);
        most = std::max(most, forward_passes(std::min(t + ahead_ + 1, total_)) - backward_passes(t));
      }
    }
    return most;
  }

 private:
  // Of the first `passes` ones, those of marked chunks.
  int64_t forward_passes(int64_t passes) const {
    const int64_t round = chunks_ * stages_, left = passes % round, chunk = left / stages_;
    return passes / round * stages_ * before(chunks_) + stages_ * before(chunk) +
           left % stages_ * (before(chunk + 1) - before(chunk));
  }
  int64_t backward_passes(int64_t passes) const {
    const int64_t round = chunks_ * stages_, left = passes % round, chunk = chunks_ - left / stages_;
    return passes / round * stages_ * before(chunks_) + stages_ * (before(chunks_) - before(chunk)) +
           left % stages_ * (before(chunk) - before(chunk - 1));
  }
  int64_t before(int64_t chunk) const { return before_[static_cast<size_t>(std::clamp<int64_t>(chunk, 0, chunks_))]; }

  int64_t chunks_, stages_, total_, ahead_;
  std::vector<int64_t> before_;  // marked chunks before each, and in all
};

}  // namespace

double slot_bytes(std::span<const double> kept, int64_t stages, int64_t stage, int64_t micro_batches) {
  InFlight in_flight(static_cast<int64_t>(kept.size()), stages, stage, micro_batches);
  return smallest_slots(kept, [&](std::span<const size_t> chunks) { return in_flight.most(chunks); }).bytes;
}

}  // namespace partita
