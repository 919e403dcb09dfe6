// States that are stored once in each of several groups of ranks (HSDP, MiCS): searched, and counted.
#include <gtest/gtest.h>

#include <random>

#include "partitioner/planner/space/layout_space.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

// No pinned groups are faster than what is found without the pin, but for what the search leaves out: groups that save
// a fiftieth of the exchanges at most.
TEST(ZeroGroups, AreSearched) {
  std::mt19937 rng(11);
  auto pick = [&](std::initializer_list<int> of) { return *(of.begin() + static_cast<int64_t>(rng() % of.size())); };
  int64_t chosen = 0;
  for (int round = 0; round < 60; ++round) {
    const Workload w =
        transformer(pick({1, 2, 6}), 256 * pick({1, 4, 16}), 512 * pick({1, 2, 4}), 1000 * pick({1, 50}));
    const Cluster c = cluster(pick({2, 4, 6}), pick({1, 2, 4}), pick({0, 1}) == 0 ? "A100-40GB" : "H100-80GB");
    OfOwnPrograms own(w, c, c.devices() * pick({1, 4}));
    CostModel& model = own.model;
    const auto found = search(model, {});
    ASSERT_TRUE(found.ok()) << found.status();
    if (!found->best) continue;
    const double free = model.predict(found->best->layout, false).step_seconds;
    chosen += found->best->layout.zero_group > 0;
    for (const int64_t ranks : divisors(c.devices())) {
      if (ranks == 1) continue;
      SearchOptions o;
      o.pin.zero_group = ranks;
      EXPECT_LE(free, 1.01 * seconds_found(model, o))
          << round << ", groups of " << ranks << ": " << describe(found->best->layout);
    }
  }
  EXPECT_GT(chosen, 0);
}

// Messages over four hosts are short: half as many steps around a ring are worth more than half the states' memory.
TEST(ZeroGroups, WaitForFewerHops) {
  OfOwnPrograms own(transformer(2, 256, 512, 1000), cluster(4, 1, "H100-80GB"), 16);
  CostModel& model = own.model;
  SearchOptions o;
  o.pin.axes = {{"data", 4}};
  const auto found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.zero_group, 2) << describe(found->best->layout);
  // A pinned stage of ZeRO is one over all ranks.
  o.pin.zero = 1;
  const auto pinned = search(model, o);
  ASSERT_TRUE(pinned.ok() && pinned->best) << pinned.status();
  EXPECT_EQ(pinned->best->layout.zero_group, 0);
  EXPECT_LT(model.predict(found->best->layout, false).step_seconds,
            model.predict(pinned->best->layout, false).step_seconds);
}

// Ranks with other positions of a group's samples store other parts, as programs place them.
TEST(ZeroGroups, AreOfAllPositions) {
  OfOwnPrograms own(transformer(2, 1024, 8192, 1000), cluster(2, 8, "H100-80GB"), 16);
  CostModel& model = own.model;
  Layout in_one, apart;
  in_one.data = 16, in_one.zero = 1, in_one.zero_group = 8;
  apart.data = 8, apart.context = 2, apart.zero = 1, apart.zero_group = 4;
  EXPECT_DOUBLE_EQ(model.predict(in_one, false).memory[0].optimizer, model.predict(apart, false).memory[0].optimizer);
}

// What lies on the host without ZeRO is copied, and not gathered.
TEST(ZeroGroups, WithoutZeroNothingIsGathered) {
  OfOwnPrograms own(transformer(2, 1024, 512, 1000), cluster(2, 8, "H100-80GB"), 16);
  CostModel& model = own.model;
  Layout l;
  l.data = 16, l.offload = OffloadMode::kAll;
  for (const PlanTraffic::Stage& stage : model.traffic(l).stages)
    for (const Transfer& t : stage.transfers) EXPECT_EQ(t.collective, "all_reduce");
}

}  // namespace
}  // namespace partita
