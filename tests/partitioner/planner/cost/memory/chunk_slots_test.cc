// Slots as they are counted beside slots as programs have them.
#include "partitioner/planner/cost/memory/chunk_slots.h"

#include <gtest/gtest.h>

#include <random>

#include "partitioner/layout/pipeline_schedule.h"

namespace partita {
namespace {

TEST(ChunkSlots, AreThoseOfPrograms) {
  std::mt19937 rng(11);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 500; ++round) {
    const int64_t stages = 1 + below(8), stage = below(stages), micro_batches = stages * (1 + below(6));
    std::vector<int64_t> bytes(static_cast<size_t>(2 + below(6)));
    for (int64_t& b : bytes) b = 64 * below(4);
    if (below(3) == 0) bytes.back() += 64 * below(40);
    std::vector<StageStep> order =
        stage_order(PipelineSchedule::kInterleaved, stages, stage, static_cast<int64_t>(bytes.size()), micro_batches);
    int64_t laid_out = 0;
    for (const SlotClass& c : divide_slots(order, bytes)) laid_out = std::max(laid_out, c.begin + c.count * c.bytes);
    const std::vector<double> kept(bytes.begin(), bytes.end());
    ASSERT_EQ(slot_bytes(kept, stages, stage, micro_batches), static_cast<double>(laid_out))
        << stages << " stages, " << stage << ", " << micro_batches << " micro-batches, "
        << testing::PrintToString(bytes);
  }
}

}  // namespace
}  // namespace partita
