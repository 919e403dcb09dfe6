// The choice against all choices, and the stages that it is made for.
#include "partitioner/planner/cost/recompute_knapsack.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

using Counts = std::vector<std::array<int, kRecomputeModes>>;

struct Sum {
  double bytes = 0, seconds = 0;
};
Sum sum(const std::vector<RecomputeItems>& items, const Counts& counts) {
  Sum out;
  for (size_t k = 0; k < items.size(); ++k) {
    int n = 0;
    for (size_t m = 0; m < kRecomputeModes; ++m) {
      n += counts[k][m];
      out.bytes += counts[k][m] * items[k].modes[m].bytes, out.seconds += counts[k][m] * items[k].modes[m].seconds;
    }
    EXPECT_EQ(n, items[k].count);
  }
  return out;
}

// The least seconds of all ways to free so much.
double least_seconds(const std::vector<RecomputeItems>& items, double bytes) {
  double least = 1e300;
  std::function<void(size_t, Sum)> add = [&](size_t unit, Sum so_far) {
    size_t kind = 0;
    for (int n = static_cast<int>(unit); kind < items.size() && n >= items[kind].count;) n -= items[kind++].count;
    if (kind == items.size()) {
      if (so_far.bytes >= bytes) least = std::min(least, so_far.seconds);
      return;
    }
    add(unit + 1, so_far);
    for (const RecomputeItems::Mode& m : items[kind].modes) {
      if (m.bytes > 0) add(unit + 1, {so_far.bytes + m.bytes, so_far.seconds + m.seconds});
    }
  };
  add(0, {});
  return least;
}

TEST(ChooseRecompute, IsLeastOrNearlySo) {
  std::mt19937 rng(3);
  auto draw = [&](double low, double high) { return std::uniform_real_distribution(low, high)(rng); };
  double mine = 0, least = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<RecomputeItems> items(1 + rng() % 2);
    double most = 0;
    for (RecomputeItems& i : items) {
      i.count = 1 + static_cast<int>(rng() % 3);
      double best = 0;
      for (size_t m = static_cast<size_t>(RecomputeMode::kSelective); m < kRecomputeModes; ++m) {
        if (rng() % 4 == 0) continue;
        i.modes[m] = {draw(1, 10), draw(0.5, 5)};
        best = std::max(best, i.modes[m].bytes);
      }
      most += i.count * best;
    }
    const double bytes = draw(0, 1.1 * most);
    const auto counts = choose_recompute(items, bytes);
    ASSERT_EQ(counts.has_value(), bytes <= most) << round;
    if (!counts) continue;
    const Sum got = sum(items, *counts);
    EXPECT_GE(got.bytes, bytes);
    const double want = least_seconds(items, bytes);
    EXPECT_GE(got.seconds, want - 1e-9);
    mine += got.seconds, least += want;
  }
  EXPECT_LT(mine, 1.1 * least);
}

TEST(ChooseRecompute, OfOneModeTakesAsManyBlocksAsAreNeeded) {
  std::vector<RecomputeItems> items(1);
  items[0].count = 12, items[0].modes[static_cast<size_t>(RecomputeMode::kFull)] = {10, 1};
  for (double bytes : {0., 1., 10., 11., 120.}) {
    const auto counts = choose_recompute(items, bytes);
    ASSERT_TRUE(counts) << bytes;
    EXPECT_EQ((*counts)[0][static_cast<size_t>(RecomputeMode::kFull)], std::ceil(bytes / 10)) << bytes;
  }
  EXPECT_FALSE(choose_recompute(items, 121));
}

// A transformer on devices that hold `share` of what it keeps where nothing is computed again.
struct Stages {
  explicit Stages(double share) : workload(transformer(12, 1024, 2048, 8000)), devices(cluster(1, 4, "A100-80GB")) {
    UnitWork& block = workload.kinds[1];
    block.input_bytes = 2 * block.input;
    block.kept[static_cast<size_t>(RecomputeMode::kNone)] = {2 * block.saved[0], 2 * block.saved[1]};
    pinned = problem(workload, devices, 16);
    pinned.own_programs = true;
    layout.pipeline = 4;
    CostModel model(pinned);
    const MemoryUse m = model.predict(layout, false).memory[0];
    DeviceProfile& device = devices.groups[0].device;
    device.memory_bytes = m.total() - (1 - share) * m.activations;
  }
  Workload workload;
  Cluster devices;
  Problem pinned;
  Layout layout;
};

// The first stage holds four micro-batches, the last one: so much more is computed again there.
TEST(WithRecompute, ComputesAgainWhatEachStageLacksRoomFor) {
  Stages s(0.7);
  CostModel model(s.pinned);
  ASSERT_FALSE(model.predict(s.layout, false).fits);
  const auto mixed = model.with_recompute(s.layout, 0);
  ASSERT_TRUE(mixed);
  EXPECT_TRUE(model.predict(*mixed, false).fits);
  auto blocks = [&](int64_t stage) {
    size_t n = 0;
    for (const RecomputedBlocks& r : model.recomputed(*mixed, stage)) n += r.blocks.size();
    return n;
  };
  EXPECT_GT(blocks(0), blocks(2));
  EXPECT_EQ(blocks(3), 0u);
  // One block less would not fit.
  Layout less = *mixed;
  less.recompute_blocks[blocks(0) - 1] = RecomputeMode::kNone;
  EXPECT_FALSE(model.predict(less, false).fits);
  Layout full = s.layout;
  full.recompute = RecomputeMode::kFull;
  EXPECT_LT(model.predict(*mixed, false).step_seconds, model.predict(full, false).step_seconds);
  EXPECT_GT(model.predict(*mixed, false).step_seconds, model.predict(s.layout, false).step_seconds);
  EXPECT_EQ(model.predict(*mixed, false).memory[3].total(), model.predict(s.layout, false).memory[3].total());
}

TEST(WithRecompute, IsNothingWhereAllFitsOrNothingDoes) {
  Stages enough(1), tiny(0.01);
  CostModel of_enough(enough.pinned), of_tiny(tiny.pinned);
  EXPECT_FALSE(of_enough.with_recompute(enough.layout, 0));
  EXPECT_FALSE(of_tiny.with_recompute(tiny.layout, 0));
}

// Each mode takes other working memory, once a stage: what frees more may need more than it frees.
TEST(WithRecompute, IsSomethingWhereAllBlocksComputedAgainFit) {
  std::mt19937 rng(3);
  auto draw = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(rng); };
  for (int round = 0; round < 200; ++round) {
    Stages s(draw(0.1, 1));
    UnitWork& block = s.workload.kinds[1];
    const TensorParts all = block.kept[static_cast<size_t>(RecomputeMode::kNone)];
    for (RecomputeMode m :
         {RecomputeMode::kSelective, RecomputeMode::kAttention, RecomputeMode::kMlp, RecomputeMode::kAllButAttention}) {
      const double left = draw(0.1, 1);
      s.workload.recomputes |= mode_bit(m);
      block.kept[static_cast<size_t>(m)] = {left * all[0], left * all[1]};
      block.again_traffic[static_cast<size_t>(m)] = draw(0.1, 1) * (1 - left);
    }
    CostModel model(s.pinned);
    Layout full = s.layout;
    full.recompute = RecomputeMode::kFull;
    if (model.predict(s.layout, false).fits || !model.predict(full, false).fits) continue;
    const auto found = model.with_recompute(s.layout, 0);
    ASSERT_TRUE(found) << round;
    EXPECT_TRUE(model.predict(*found, false).fits) << round;
  }
}

// All ways to cut the model in the pipeline's stages.
template <typename Visit>
void visit_cuts(const Stages& s, std::vector<int>& cuts, Visit visit) {
  const int left = static_cast<int>(s.workload.units.size()) - std::accumulate(cuts.begin(), cuts.end(), 0);
  const int stages = static_cast<int>(s.layout.pipeline) - static_cast<int>(cuts.size());
  for (int units = stages == 1 ? left : 1; units <= left - stages + 1; ++units) {
    cuts.push_back(units);
    if (stages == 1) {
      visit(cuts);
    } else {
      visit_cuts(s, cuts, visit);
    }
    cuts.pop_back();
  }
}

// Early stages, which compute most again, get fewer blocks; hardly any way to cut the model is faster, and none fits
// where none is found.
TEST(FittingCuts, MoveUnitsAwayFromStagesThatComputeAgain) {
  int moved = 0;
  for (double share : {0.9, 0.6, 0.4, 0.3, 0.02}) {
    Stages s(share);
    CostModel model(s.pinned);
    auto seconds = [&](const std::vector<int>& cuts) {
      Layout l = s.layout;
      l.cuts = cuts;
      if (auto again = model.with_recompute(l, 0)) l = *again;
      const Prediction p = model.predict(l, true);
      return p.fits ? p.step_seconds : 1e300;
    };
    double best = 1e300;
    std::vector<int> so_far;
    visit_cuts(s, so_far, [&](const std::vector<int>& cuts) { best = std::min(best, seconds(cuts)); });
    const std::vector<int> found = model.fitting_cuts(s.layout, 0.0), balanced = model.balanced_cuts(s.layout);
    ASSERT_EQ(found.empty(), best == 1e300) << share;
    if (found.empty()) continue;
    EXPECT_LE(seconds(found), seconds(balanced) * 1.0001) << share;
    EXPECT_LE(seconds(found), best * 1.02) << share;
    EXPECT_LE(found[0], balanced[0]) << share;
    moved += found[0] < balanced[0] && seconds(found) < 0.97 * seconds(balanced);
  }
  EXPECT_GE(moved, 1);
}

TEST(FittingCuts, AreBalancedWhereAllFits) {
  Stages s(1.5);
  CostModel model(s.pinned);
  EXPECT_EQ(model.fitting_cuts(s.layout, 0.0), model.balanced_cuts(s.layout));
  EXPECT_EQ(model.fitting_cuts(s.layout), model.balanced_cuts(s.layout));
}

// The stages of a cluster that differ choose what they compute again block by block, as others do.
TEST(Search, StagesThatDifferComputeBlocksAgain) {
  Workload w = Stages(1).workload;
  Cluster c = cluster(1, 3, "A100-80GB");
  Problem p = problem(w, c, 16);
  p.own_programs = true;
  SearchOptions o;
  o.pin.zero = 0, o.pin.axes = {{"pipeline", 2}};
  o.pin.micro_batch = 2, o.pin.schedule = PipelineSchedule::k1f1b;  // with which there is no other way out
  auto best = [&](RecomputeMode recompute) {
    o.recompute = recompute;
    CostModel model(p);
    auto found = search(model, o);
    EXPECT_TRUE(found.ok()) << found.status();
    return found->best;
  };
  const auto roomy = best(RecomputeMode::kAuto);
  ASSERT_TRUE(roomy && !roomy->layout.stages.empty());
  const MemoryUse& most = roomy->prediction.memory[static_cast<size_t>(roomy->prediction.worst_stage)];
  int by_block = 0;
  for (double share : {0.7, 0.5, 0.3, 0.2, 0.1}) {
    c.groups[0].device.memory_bytes = most.total() - (1 - share) * most.activations;
    const auto tight = best(RecomputeMode::kAuto);
    if (!tight) continue;
    EXPECT_FALSE(tight->layout.stages.empty());
    EXPECT_TRUE(tight->prediction.fits);
    by_block += !tight->layout.recompute_blocks.empty();
    for (RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kFull}) {
      const auto alike = best(mode);
      if (!alike) continue;
      EXPECT_LE(tight->prediction.step_seconds, alike->prediction.step_seconds * (1 + 1e-6)) << share;
    }
  }
  EXPECT_GE(by_block, 1);
}

// The search finds it, and where programs need more than is counted, one with more computed again.
TEST(Search, ComputesBlocksAgainWhereMemoryEnds) {
  Stages s(0.7);
  for (double more : {1.0, 1.1}) {
    CostModel model(s.pinned);
    SearchOptions o;
    for (const char* axis : {"data", "tensor", "context", "expert"}) o.pin.axes[axis] = 1;
    o.pin.axes["pipeline"] = 4;
    o.pin.micro_batch = 1, o.pin.zero = 0, o.pin.schedule = PipelineSchedule::k1f1b;
    o.allocate = [&](const Layout& l) {
      std::vector<double> bytes;
      for (const MemoryUse& m : model.predict(l, false).memory)
        bytes.push_back(m.total() - m.reserve + (more - 1) * m.activations);
      return bytes;
    };
    auto found = search(model, o);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(found->best);
    EXPECT_FALSE(found->best->layout.recompute_blocks.empty()) << more;
    EXPECT_TRUE(found->best->prediction.fits);
    EXPECT_LE(found->allocated, 4);
    const std::vector<double> bytes = *o.allocate(found->best->layout);
    EXPECT_LE(bytes[0], found->best->prediction.room(0));
    EXPECT_GT(bytes[0], 0.8 * found->best->prediction.room(0));
  }
}

}  // namespace
}  // namespace partita
