#include "partitioner/planner/cost/memory/memory_model.h"
#include "partitioner/planner/cost/memory/program_memory.h"

#include <gtest/gtest.h>

#include "partitioner/planner/cost/cost_model.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

TEST(Memory, FallsWithEverySplit) {
  Workload w = transformer(24, 4096, 2048, 50000);
  Cluster c = cluster(4, 8, "A100-80GB");
  Problem p = problem(w, c, 256);
  CostModel model(p);
  Layout l;
  l.data = 8, l.tensor = 4;
  auto memory = [&](const Layout& x) { return model.predict(x, false).most_memory(); };
  double before = memory(l);
  for (int z : {1, 2, 3}) {
    l.zero = z;
    EXPECT_LT(memory(l), before * 1.0001) << z;
    before = memory(l);
  }
  l.zero = 0;
  Layout full = l, sequence = l, wide = l, offload = l;
  full.recompute = RecomputeMode::kFull;
  EXPECT_LT(memory(full), memory(l));
  sequence.sequence_parallel = true;
  EXPECT_LT(memory(sequence), memory(l));
  wide.tensor = 8, wide.data = 4;
  EXPECT_LT(memory(wide), memory(l));
  offload.offload = OffloadMode::kOptimizer;
  EXPECT_LT(memory(offload), memory(l));
  Layout more = l;
  more.micro_batch = 2;
  EXPECT_GT(memory(more), memory(l));
}

// Frozen weights have no gradient and no states, and lie in the compute precision; ZeRO-3 shards and gathers them like
// others.
TEST(Memory, CountsFrozenWeights) {
  Workload w = transformer(12, 1024, 512, 32000);
  Cluster c = cluster(1, 4, "A100-80GB");
  Layout l;
  l.tensor = 2, l.data = 2;
  Workload frozen = w;
  frozen.kinds[1].frozen = {1e8, 3e7};
  CostModel of_trained(problem(w, c, 8)), of_frozen(problem(frozen, c, 8));
  auto predicted = [&](CostModel& model, int zero) {
    l.zero = zero;
    return model.predict(l, false);
  };
  constexpr double kStored = 12 * 8e7 * 2;  // bf16
  Prediction without = predicted(of_trained, 2), with = predicted(of_frozen, 2);
  EXPECT_DOUBLE_EQ(with.memory[0].parameters - without.memory[0].parameters, kStored);
  EXPECT_DOUBLE_EQ(with.memory[0].transient, without.memory[0].transient);
  EXPECT_DOUBLE_EQ(with.step_seconds, without.step_seconds);
  without = predicted(of_trained, 3), with = predicted(of_frozen, 3);
  EXPECT_DOUBLE_EQ(with.memory[0].parameters - without.memory[0].parameters, kStored / 2);
  EXPECT_GT(with.memory[0].transient - without.memory[0].transient, 8e7 * 2);
  EXPECT_GT(with.breakdown.gathers, without.breakdown.gathers);
  EXPECT_DOUBLE_EQ(with.memory[0].gradients, without.memory[0].gradients);
  l.offload = OffloadMode::kAll;
  EXPECT_EQ(predicted(of_frozen, 3).memory[0].parameters, 0);
}

// Gathered once for the whole step, they lie whole beside the rank's own part.
TEST(Memory, CountsFrozenWeightsThatStayGathered) {
  Workload w = transformer(12, 1024, 512, 32000);
  Cluster c = cluster(1, 4, "A100-80GB");
  Layout l;
  l.data = 4, l.zero = 3;
  const auto more = [&](bool reshard) {
    l.reshard_after_forward = reshard;
    Workload frozen = w;
    frozen.kinds[1].frozen = {1e8, 0}, frozen.kinds[1].frozen_bytes = {2e8, 0};
    const auto parameters = [&](const Workload& of) {
      Problem p = problem(of, c, 8);
      p.own_programs = true;
      return stage_memory(p, c.groups[0].device, l, {{0, 12, 0}, 1}, 1).parameters;
    };
    return parameters(frozen) - parameters(w);
  };
  EXPECT_DOUBLE_EQ(more(true), 12 * 2e8 / 4);
  EXPECT_DOUBLE_EQ(more(false), 12 * 2e8 / 4 + 12 * 2e8);
}

// Keys and values that the context axis cannot exchange for heads are gathered, and kept whole; what exchanges keeps
// its part.
TEST(Memory, CountsGatheredKeys) {
  Workload w = transformer(12, 1024, 512, 32000);
  Cluster c = cluster(1, 4, "A100-80GB");
  Problem p = problem(w, c, 8);
  p.own_programs = true;
  AttentionWork a;
  a.heads = a.key_heads = 3, a.queries = a.keys = 512, a.head_size = 64, a.full_share = 0.5;
  UnitWork with = w.kinds[1], none = w.kinds[1];
  with.attention = {a}, none.attention.clear();
  constexpr double kOthers = 2 * 3 * 512 * 64 * 2 * 0.75;  // bf16, three ranks' of four
  const auto kept = [&](const UnitWork& u, int64_t samples) {
    Layout l;
    l.context = 4, l.micro_batch = samples;
    return kept_bytes(u, p, l, RecomputeMode::kNone);
  };
  EXPECT_DOUBLE_EQ(kept(with, 1) - kept(none, 1), kOthers);
  EXPECT_DOUBLE_EQ(kept(with, 4) - kept(none, 4), 0);  // samples are exchanged
}

// Of what is kept and moved, an RMS norm that is run as a chain adds its own bytes, and a split vocabulary all logits.
TEST(Memory, CountsWhatEagerSoftwareKeeps) {
  Workload w = transformer(4, 2048, 1024, 32000);
  Cluster c = cluster(1, 2, "A100-80GB");
  DeviceProfile& d = c.groups[0].device;
  d.software.composed_saved_bytes = 1.5, d.software.gathered_logit_bytes = 20, d.software.logit_bytes = 2;
  d.software.fragmentation = 0;
  Problem p = problem(w, c, 8);
  Layout l;
  l.data = 2;
  double plain = saved_bytes(w.kinds[1], p, d, l, RecomputeMode::kNone);
  w.kinds[1].composed = {0, 2.0 * 1024 * 2048};
  EXPECT_DOUBLE_EQ(saved_bytes(w.kinds[1], p, d, l, RecomputeMode::kNone), plain + 1.5 * 2 * 1024 * 2048);
  StageUnits last{{0, 0, 1}, 1};
  EXPECT_DOUBLE_EQ(stage_memory(p, d, l, last, 1).transient, 2.0 * 1024 * 32000);
  l.data = 1, l.tensor = 2;
  EXPECT_DOUBLE_EQ(stage_memory(p, d, l, last, 1).transient, 20.0 * 1024 * 32000);
}

// The reserve has room for three communicators; those beyond take 32 channels of 10 and 2 MiB.
TEST(Memory, CountsCommunicatorsBeyondTheReserve) {
  Workload w = transformer(4, 2048, 1024, 32000);
  Cluster c = cluster(1, 2, "A100-80GB");
  Problem p = problem(w, c, 8);
  const auto more = [&](const Layout& l) {
    return stage_memory(p, c.groups[0].device, l, {{0, 0, 1}, 1}, 1).communicators / (32 << 20);
  };
  Layout l;
  EXPECT_EQ(more(l), 0);
  l.data = 4, l.tensor = 2;
  EXPECT_EQ(communicators(l).groups, 2);
  EXPECT_EQ(more(l), 0);
  l.pipeline = 2;
  EXPECT_EQ(more(l), 0);  // as much as a third group
  l.pipeline = 4;
  EXPECT_EQ(communicators(l).sends, 2);
  EXPECT_DOUBLE_EQ(more(l), 10 + 2);
  l.context = 2;  // its own group, and one for the gradients
  EXPECT_DOUBLE_EQ(more(l), 2 * (10 + 2));
  l.context = 1, l.expert = 2, l.zero_group = 4;  // all samples, an expert's, and two levels
  EXPECT_EQ(communicators(l).groups, 5);
}

}  // namespace
}  // namespace partita
