#include "partitioner/pipeline_schedule.h"

#include <algorithm>
#include <map>

namespace partita {
namespace {

// The k-th forward (or backward) of an interleaved stage: groups of `stages` micro-batches run through chunk 0, then
// chunk 1, …
StageStep interleaved(StageWork kind, int64_t k, int64_t stages, int64_t chunks) {
  int64_t group = k / (stages * chunks), within = k % (stages * chunks);
  int64_t chunk = within / stages;
  if (kind == StageWork::kBackward) chunk = chunks - 1 - chunk;
  return {kind, static_cast<int>(chunk), group * stages + within % stages};
}

// The lowest free slot from a micro-batch's first forward on, until its last backward operation, which is that of the
// first chunk.
void take_slots(std::vector<StageStep>& order, StageWork last, SlotUse slots) {
  std::vector<bool> taken;
  std::map<std::pair<int, int64_t>, int64_t> slot_of;
  for (StageStep& x : order) {
    const int chunk = slots == SlotUse::kChunk ? x.chunk : 0;
    auto [at, fresh] = slot_of.try_emplace({chunk, x.micro_batch}, 0);
    if (fresh) {
      auto free = std::find(taken.begin(), taken.end(), false);
      at->second = free - taken.begin();
      if (free == taken.end()) taken.push_back(true);
      taken[static_cast<size_t>(at->second)] = true;
    }
    x.slot = at->second;
    if (x.kind == last && x.chunk == chunk) taken[static_cast<size_t>(x.slot)] = false;
  }
}

}  // namespace

std::vector<StageStep> stage_order(PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t chunks, int64_t m,
                                   SlotUse slots) {
  bool apart = schedule == PipelineSchedule::kZeroBubble;
  int64_t total = m * chunks, ahead = stages - stage - 1, weights = 0;
  if (schedule == PipelineSchedule::kGpipe) ahead = total;
  if (schedule == PipelineSchedule::kInterleaved && chunks > 1) ahead = 2 * ahead + (chunks - 1) * stages;
  ahead = std::min(ahead, total);
  auto at = [&](StageWork kind, int64_t k) {
    return chunks > 1 ? interleaved(kind, k, stages, chunks) : StageStep{kind, 0, k};
  };
  std::vector<StageStep> order;
  order.reserve(static_cast<size_t>(3 * total));
  for (int64_t k = 0; k < ahead; ++k) order.push_back(at(StageWork::kForward, k));
  for (int64_t k = 0; k < total; ++k) {
    if (k + ahead < total) order.push_back(at(StageWork::kForward, k + ahead));
    order.push_back(at(StageWork::kBackward, k));
    // Stage s owes s gradients of weights: they fill its gap at the end, and as many micro-batches as stages are in
    // flight everywhere.
    if (apart && k >= stage) order.push_back(at(StageWork::kWeight, weights++));
  }
  while (apart && weights < total) order.push_back(at(StageWork::kWeight, weights++));
  take_slots(order, apart ? StageWork::kWeight : StageWork::kBackward, slots);
  return order;
}

int64_t slots_of(const std::vector<StageStep>& order) {
  int64_t most = 0;
  for (const StageStep& x : order) most = std::max(most, x.slot + 1);
  return most;
}

}  // namespace partita
