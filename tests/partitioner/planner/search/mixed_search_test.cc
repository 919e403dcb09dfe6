// The search on clusters of several groups: against enumeration of stages that differ, cuts against all cuts, the
// bound, memory, links between groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/cat.h"
#include "partitioner/planner/search/search.h"
#include "partitioner/planner/space/layout_space.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

// "8 x H100-80GB", one node each.
Cluster groups(const std::vector<std::pair<int64_t, std::string>>& list, const std::string& between = "") {
  std::string text = "groups:\n";
  for (const auto& [devices, name] : list) append(text, "- {devices_per_node: ", devices, ", device: ", name, "}\n");
  if (!between.empty()) append(text, "between: ", between, "\n");
  auto c = parse_cluster(text, "c", library());
  EXPECT_TRUE(c.ok()) << c.status();
  return *c;
}

using Axes = Layout::StageAxes;

// All that the stages of a group may look like.
std::vector<std::vector<Axes>> stages_of(const Problem& p, int64_t devices) {
  std::vector<std::vector<Axes>> out;
  for (int64_t stages : divisors(devices))
    for (int64_t tensor : divisors(devices / stages))
      for (int64_t context : divisors(devices / stages / tensor)) {
        if (static_cast<double>(context) > std::max(1.0, p.workload->sequence / 1024)) continue;
        double widest = 1;
        for (const UnitWork& u : p.workload->kinds) widest = std::max(widest, u.split_factor);
        if (static_cast<double>(tensor) > widest) continue;
        out.emplace_back(static_cast<size_t>(stages), Axes{devices / stages / tensor / context, tensor, context, 1});
      }
  return out;
}

// A layout with these stages, as the pins of a plan say it.
Layout with_stages(const std::vector<Axes>& stages) {
  Layout l;
  l.pipeline = static_cast<int64_t>(stages.size());
  const Axes* most = &stages[0];
  for (const Axes& s : stages) most = s.data > most->data ? &s : most;
  l.data = most->data, l.tensor = most->tensor, l.context = most->context;
  if (std::count(stages.begin(), stages.end(), stages[0]) != l.pipeline) l.stages = stages;
  return l;
}

// Each combination of the stages of both groups, and stages that are alike over all devices, with each choice that the
// stages share.
template <typename Visit>
void visit_layouts(const Problem& p, Visit visit) {
  std::vector<std::vector<Axes>> all = stages_of(p, p.devices());
  for (const auto& first : stages_of(p, p.cluster->groups[0].devices()))
    for (const auto& second : stages_of(p, p.cluster->groups[1].devices())) {
      all.push_back(first);
      all.back().insert(all.back().end(), second.begin(), second.end());
    }
  for (const std::vector<Axes>& stages : all) {
    Layout l = with_stages(stages);
    bool tensor = false, shares = false;
    for (const Axes& s : stages) tensor = tensor || s.tensor > 1, shares = shares || s.data * s.context > 1;
    for (int64_t micro : divisors(p.global_batch))
      for (bool sequence : {false, true})
        for (RecomputeMode recompute : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull})
          for (int zero : {0, 1, 2, 3})
            for (OffloadMode offload : {OffloadMode::kNone, OffloadMode::kOptimizer, OffloadMode::kAll})
              for (PipelineSchedule schedule : {PipelineSchedule::k1f1b, PipelineSchedule::kGpipe,
                                                PipelineSchedule::kZeroBubble, PipelineSchedule::kInterleaved})
                for (int64_t v = 1; v <= 6; ++v) {
                  if ((schedule == PipelineSchedule::kInterleaved) != (v > 1) || (sequence && !tensor)) continue;
                  if ((zero > 0 && !shares) || (zero > 1 && l.pipeline > 1)) continue;
                  if (l.pipeline == 1 && schedule != PipelineSchedule::k1f1b) continue;
                  l.micro_batch = micro, l.sequence_parallel = sequence, l.recompute = recompute, l.zero = zero;
                  l.offload = offload, l.schedule = schedule, l.interleave = v;
                  if (invalid(p, l).empty()) visit(l);
                }
  }
}

struct Case {
  Workload workload;
  Cluster cluster;
  int64_t batch;
};

Case random_case(std::mt19937& rng) {
  auto pick = [&](std::initializer_list<int> of) { return *(of.begin() + static_cast<int64_t>(rng() % of.size())); };
  const std::vector<std::string> devices = {"A100-40GB", "RTX-4090", "L4", "H100-80GB", "V100-16GB"};
  Case c;
  const int blocks = pick({2, 3, 4, 5, 6});
  c.workload = transformer(blocks, 256 * pick({1, 4, 8, 16, 24}), 512 * pick({1, 2, 4}), 1000 * pick({1, 8, 50}));
  const std::pair<int, int> sizes =
      std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 3}, {2, 2}, {4, 2}, {4, 4}}[rng() % 6];
  c.cluster = groups({{sizes.first, devices[rng() % 5]}, {sizes.second, devices[rng() % 5]}});
  c.batch = pick({4, 8, 12, 16});
  return c;
}

TEST(MixedSearch, EqualsEnumerationOnSmallProblems) {
  std::mt19937 rng(11);
  int differ = 0, equal = 0;
  for (int round = 0; round < 60; ++round) {
    Case c = random_case(rng);
    Problem p = problem(c.workload, c.cluster, c.batch);
    CostModel model(p);
    auto found = search(model, {});
    ASSERT_TRUE(found.ok()) << found.status();
    double want = 1e300;
    visit_layouts(p, [&](Layout l) {
      std::vector<std::vector<int>> cuts;
      if (l.stages.empty()) cuts.push_back({});  // blocks evenly
      if (l.pipeline > 1 && (l.interleave == 1 || !l.stages.empty())) cuts.push_back(model.balanced_cuts(l));
      if (l.pipeline > 1 && l.interleave == 1) cuts.push_back(model.fitting_cuts(l));
      for (size_t k = 0; k < cuts.size(); ++k) {
        if (cuts[k].empty() && (k > 0 || !l.stages.empty())) continue;
        l.cuts = cuts[k];
        const Prediction r = model.predict(l, false);
        if (r.fits) want = std::min(want, r.step_seconds);
      }
    });
    double got = 1e300;
    if (found->best) found->others.push_back(*found->best);
    for (const Candidate& o : found->others) {
      if (o.prediction.fits) got = std::min(got, model.predict(o.layout, false).step_seconds);
      if (o.prediction.fits && &o == &found->others.back()) differ += !o.layout.stages.empty();
    }
    // Near the fastest, other cuts are tried as well.
    EXPECT_LE(got, want * (1 + 1e-9)) << round << " " << (found->best ? describe(found->best->layout) : "none fits");
    EXPECT_GE(got, want * 0.8) << round;
    equal += got >= want * (1 - 1e-9);
    EXPECT_EQ(found->gap, 0);
  }
  EXPECT_GT(differ, 15);  // of 60: it is worth it
  EXPECT_GT(equal, 30);
}

// Every way to cut the units: none is much faster than the cuts that are balanced.
TEST(MixedSearch, CutsAreNearlyTheBestOfAll) {
  std::mt19937 rng(5);
  double worst = 0;
  for (int round = 0; round < 12; ++round) {
    Case c = random_case(rng);
    Problem p = problem(c.workload, c.cluster, c.batch);
    CostModel model(p);
    auto found = search(model, {});
    ASSERT_TRUE(found.ok()) << found.status();
    if (!found->best || found->best->layout.pipeline == 1) continue;
    const int units = static_cast<int>(c.workload.units.size());
    double all = 1e300, got = 1e300;
    visit_layouts(p, [&](Layout l) {
      if (l.interleave > 1) return;
      const double bound = model.lower_bound(l);
      for (int places = 0; places < 1 << (units - 1); ++places) {  // a cut before unit k + 1 where bit k is set
        std::vector<int> cuts = {1};
        for (int k = 0; k + 1 < units; ++k) {
          if (places >> k & 1) cuts.push_back(0);
          ++cuts.back();
        }
        if (static_cast<int64_t>(cuts.size()) != l.pipeline) continue;
        l.cuts = cuts;
        const Prediction r = model.predict(l, false);
        EXPECT_LE(bound, r.step_seconds * (1 + 1e-9)) << describe(l);
        if (r.fits) all = std::min(all, r.step_seconds);
      }
    });
    got = model.predict(found->best->layout, false).step_seconds;
    for (const Candidate& o : found->others) {
      if (o.prediction.fits) got = std::min(got, model.predict(o.layout, false).step_seconds);
    }
    worst = std::max(worst, got / all - 1);
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_LT(worst, 0.03);
}

// Seven devices of one kind have no uniform layout but seven ranks of one axis.
TEST(MixedSearch, StagesDifferWhereTheDevicesDivideBadly) {
  Workload w = transformer(24, 2048, 2048, 50000);
  auto plan_on = [&](int64_t devices) {
    const Cluster c = cluster(1, devices, "H100-80GB");
    CostModel model(problem(w, c, 96));
    auto found = search(model, {});
    EXPECT_TRUE(found.ok() && found->best) << found.status();
    return *std::move(found);
  };
  SearchResult seven = plan_on(7);
  EXPECT_FALSE(seven.best->layout.stages.empty()) << describe(seven.best->layout);
  EXPECT_EQ(seven.best->layout.ranks(), 7);
  for (const Candidate& c : seven.others) {
    const double limit = c.layout.stages.empty() && c.prediction.fits ? 0.98 * c.prediction.step_seconds : 1e300;
    EXPECT_LT(seven.best->prediction.step_seconds, limit) << describe(c.layout);
  }
  EXPECT_EQ(seven.gap, 0);
  const SearchResult eight = plan_on(8);
  EXPECT_TRUE(eight.best->layout.stages.empty());
}

// Those of a micro-batch, forward and backward, on each stage or chunk.
int64_t passes(const Problem& p, const Layout& l) { return 2 * micro_batches(p, l) * l.pipeline * l.interleave; }

// The closed form is made for many micro-batches: of one through two stages whose gradients of weights wait
// (zero_bubble) it knew no bubble, a fifth of the step.
TEST(MixedSearch, PipelinesOfFewPassesAreReplayedAtOnce) {
  std::mt19937 rng(5);
  int count = 0;
  for (int round = 0; round < 4; ++round) {
    Case c = random_case(rng);
    Problem p = problem(c.workload, c.cluster, c.batch);
    CostModel model(p);
    visit_layouts(p, [&](Layout l) {
      if (l.pipeline == 1 || passes(p, l) > 64 || l.zero > 0 || l.offload != OffloadMode::kNone) return;
      EXPECT_DOUBLE_EQ(model.predict(l, false).step_seconds, model.predict(l, true).step_seconds) << describe(l);
      ++count;
    });
  }
  EXPECT_GT(count, 100);
}

// What is priced in closed form, beside the replay of the stages' own times.
TEST(MixedSearch, ClosedFormIsNearTheReplay) {
  std::mt19937 rng(3);
  double sum = 0, most = 0;
  int count = 0;
  for (int round = 0; round < 20; ++round) {
    Case c = random_case(rng);
    Problem p = problem(c.workload, c.cluster, 48);
    CostModel model(p);
    visit_layouts(p, [&](Layout l) {
      if (l.stages.empty() || l.zero > 0 || l.offload != OffloadMode::kNone || passes(p, l) <= 64) return;
      l.cuts = model.balanced_cuts(l);
      const double closed = model.predict(l, false).step_seconds, replayed = model.predict(l, true).step_seconds;
      const double off = closed / replayed - 1;
      sum += std::abs(off), ++count, most = std::max(most, std::abs(off));
    });
  }
  RecordProperty("mean", std::to_string(sum / count));
  RecordProperty("most", std::to_string(most));
  EXPECT_LT(sum / count, 0.03);
  EXPECT_LT(most, 0.25);
}

}  // namespace
}  // namespace partita
