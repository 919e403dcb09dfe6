#include "partitioner/layout/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "partitioner/planner/cost/simulate.h"

namespace partita {
namespace {

// Slots of unit time that a step takes, where each of the given works takes one.
double length(PipelineSchedule schedule, int64_t p, int64_t m, int64_t v, double f, double b, double w) {
  Simulation s;
  s.micro_batches = m, s.schedule = schedule;
  s.chunks.assign(static_cast<size_t>(p), std::vector<StageTimes>(static_cast<size_t>(v), {f, b, w}));
  return simulate(s).seconds;
}

TEST(PipelineSchedule_Bubble, EqualsTheoryToTheSlot) {
  for (int64_t p : {1, 2, 3, 4, 8}) {
    for (int64_t m : {p, 2 * p, 4 * p, 5 * p}) {
      for (PipelineSchedule s : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b, PipelineSchedule::kPipedream})
        EXPECT_NEAR(1 - 2.0 * static_cast<double>(m) / length(s, p, m, 1, 1, 1, 0),
                    static_cast<double>(p - 1) / static_cast<double>(m + p - 1), 1e-12);
      // ZB-H1: with all three works alike, a third of 1F1B's 3 (p - 1).
      EXPECT_DOUBLE_EQ(length(PipelineSchedule::kZeroBubble, p, m, 1, 1, 1, 1), static_cast<double>(3 * m + p - 1));
      for (int64_t v : {2, 3, 4}) {
        double all = length(PipelineSchedule::kInterleaved, p, m, v, 1, 1, 0);
        EXPECT_NEAR(1 - 2.0 * static_cast<double>(m * v) / all,
                    static_cast<double>(p - 1) / static_cast<double>(v * m + p - 1), 1e-12)
            << p << " " << m << " " << v;
      }
    }
  }
}

TEST(PipelineSchedule_Slots, AreTheMicroBatchesInFlight) {
  for (int64_t p : {1, 2, 4, 8}) {
    for (int64_t m : {1, 2, 4, 8, 16}) {
      for (int64_t s = 0; s < p; ++s) {
        EXPECT_EQ(slots_of(stage_order(PipelineSchedule::kGpipe, p, s, 1, m)), m);
        EXPECT_EQ(slots_of(stage_order(PipelineSchedule::k1f1b, p, s, 1, m)), std::min(p - s, m));
        EXPECT_EQ(slots_of(stage_order(PipelineSchedule::kPipedream, p, s, 1, m)), std::min(p - s, m));
        EXPECT_LE(slots_of(stage_order(PipelineSchedule::kZeroBubble, p, s, 1, m)), std::min(p, m));
      }
    }
  }
}

// Every operation once, forward before backward before weights, and no slot held by two at once.
TEST(PipelineSchedule_Order, IsWholeAndSharesNoSlot) {
  for (PipelineSchedule schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b, PipelineSchedule::kInterleaved,
                                    PipelineSchedule::kZeroBubble, PipelineSchedule::kPipedream}) {
    const int64_t p = 4, m = 8, v = schedule == PipelineSchedule::kInterleaved ? 3 : 1;
    const bool apart = schedule == PipelineSchedule::kZeroBubble;
    for (int64_t s = 0; s < p; ++s) {
      std::map<std::pair<int, int64_t>, int> done;
      std::map<int64_t, std::pair<int, int64_t>> held;
      for (const StageStep& x : stage_order(schedule, p, s, v, m)) {
        std::pair key{x.chunk, x.micro_batch};
        EXPECT_EQ(done[key]++, static_cast<int>(x.kind));
        if (x.kind == StageWork::kForward) {
          EXPECT_TRUE(held.emplace(x.slot, key).second) << "slot " << x.slot;
        }
        ASSERT_EQ(held.at(x.slot), key);
        if (x.kind == (apart ? StageWork::kWeight : StageWork::kBackward)) held.erase(x.slot);
      }
      EXPECT_EQ(done.size(), static_cast<size_t>(m * v));
      for (const auto& [key, count] : done) EXPECT_EQ(count, apart ? 3 : 2);
      EXPECT_TRUE(held.empty());
    }
  }
}

// A chunk that leaves ten times as much, as the last stage's with the logits, has slots of its own; chunks that are
// alike share all.
TEST(PipelineSchedule_Slots, AreDividedByWhatChunksLeave) {
  const int64_t p = 8, m = 32, v = 4;
  for (int64_t s = 0; s < p; ++s) {
    for (const std::vector<int64_t>& bytes :
         {std::vector<int64_t>{64, 64, 64, 640}, {128, 64, 64, 64}, {64, 0, 0, 64}}) {
      const std::vector<StageStep> shared = stage_order(PipelineSchedule::kInterleaved, p, s, v, m);
      std::vector<StageStep> order = shared;
      const std::vector<SlotClass> classes = divide_slots(order, bytes);
      const int64_t most = *std::max_element(bytes.begin(), bytes.end()), least = slots_of(shared) * most;
      std::map<int64_t, std::pair<int64_t, int64_t>> held;  // by slot: its place in memory
      int64_t all = 0;
      for (StageStep& x : order) {
        const SlotClass& own = classes[static_cast<size_t>(x.chunk)];
        EXPECT_GE(own.bytes, bytes[static_cast<size_t>(x.chunk)]);
        ASSERT_TRUE(x.slot >= own.first && x.slot < own.first + own.count);
        const int64_t begin = own.begin + (x.slot - own.first) * own.bytes;
        all = std::max(all, begin + own.bytes);
        if (x.kind == StageWork::kForward) {
          for (const auto& [slot, place] : held) EXPECT_TRUE(place.second <= begin || begin + own.bytes <= place.first);
          EXPECT_TRUE(held.emplace(x.slot, std::pair{begin, begin + own.bytes}).second);
        } else {
          EXPECT_EQ(held.erase(x.slot), 1U);
        }
        EXPECT_GE(begin, own.first * own.bytes);  // addresses are those of slot 0 and more
      }
      EXPECT_LE(all, least);
      if (bytes[3] == 640) {
        EXPECT_LT(2 * all, least) << s;
      }
    }
  }
  std::vector<StageStep> order = stage_order(PipelineSchedule::kInterleaved, p, 0, v, m);
  const std::vector<StageStep> shared = order;
  divide_slots(order, std::vector<int64_t>(v, 64));
  EXPECT_EQ(order, shared);
}

// The last group may have fewer; classes of chunks keep groups whole.
TEST(PipelineSchedule_Turns, GroupsHaveSlotsSideBySide) {
  const int64_t p = 4, v = 2;
  for (const int64_t group : {2, 3}) {
    for (const int64_t m : {4 * p * group, 4 * p * group - 1}) {
      for (int64_t s = 0; s < p; ++s) {
        const int64_t groups = (m + group - 1) / group;
        std::vector<StageStep> order =
            take_turns(stage_order(PipelineSchedule::kInterleaved, p, s, v, groups), group, 3, m);
        for (const std::vector<int64_t>& bytes : {std::vector<int64_t>{64, 64}, {64, 640}}) {
          divide_slots(order, bytes, group);
          std::map<int64_t, std::pair<int, int64_t>> held;
          std::map<std::pair<int, int64_t>, int> left;  // steps that are still to come
          for (const StageStep& x : order) ++left[{x.chunk, x.micro_batch}];
          for (const StageStep& x : order) {
            EXPECT_EQ(x.slot % group, x.micro_batch % group);
            const std::pair key{x.chunk, x.micro_batch};
            EXPECT_EQ(held.try_emplace(x.slot, key).first->second, key) << "slot " << x.slot;
            if (--left[key] == 0) held.erase(x.slot);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace partita
