// A layout comes back from its pins as it was.
#include "partitioner/layout/pinned_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/cat.h"

namespace partita {
namespace {

using testing::HasSubstr;

Recipe recipe_of(const Layout& l) {
  Recipe r;
  r.pin = to_pins(l);
  return r;
}

class Random {
 public:
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  int64_t size() { return int64_t{1} << below(4); }
  template <typename Enum>
  Enum one_of(std::initializer_list<Enum> all) {
    return all.begin()[below(static_cast<int64_t>(all.size()))];
  }

  Layout layout() {
    Layout l;
    l.pipeline = 1 + below(4);
    std::vector<Layout::StageAxes> stages;
    const bool differ = l.pipeline > 1 && below(2) == 0;
    for (int64_t s = 0; s < (differ ? l.pipeline : 1); ++s) stages.push_back({size(), size(), size(), size()});
    const Layout::StageAxes most = *std::max_element(
        stages.begin(), stages.end(), [](const auto& a, const auto& b) { return a.sample_ranks() < b.sample_ranks(); });
    l.data = most.data, l.tensor = most.tensor, l.context = most.context, l.expert = most.expert;
    int64_t shared = 0, widest = 1;
    for (const Layout::StageAxes& s : stages)
      shared = std::gcd(shared, s.sample_ranks()), widest = std::max(widest, s.tensor);
    const bool alike = std::all_of(stages.begin(), stages.end(), [&](const auto& s) { return s == most; });
    if (!alike) l.stages = stages;
    l.zero = static_cast<int>(below(4)), l.zero_group = one_of<int64_t>({0, shared, Layout::kNode});
    if (alike) l.hierarchical_group = one_of<int64_t>({0, 1, shared});
    l.buckets = one_of<BucketSizes>({{}, BucketSizes::all(1 << 20), {{{2, 1 << 20}, {64, 1 << 26}}}});
    l.prefetch_blocks = one_of<std::optional<int64_t>>({std::nullopt, 0, 1, 5});
    l.reshard_after_forward = below(2) == 0, l.micro_batch = below(5);
    l.sequence_parallel = widest > 1 && below(2) == 0;
    l.recompute = one_of({RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull});
    l.schedule = one_of({PipelineSchedule::k1f1b, PipelineSchedule::kGpipe, PipelineSchedule::kZeroBubble,
                         PipelineSchedule::kInterleaved, PipelineSchedule::kPipedream});
    if (l.pipeline == 1) l.schedule = PipelineSchedule::k1f1b;
    if (l.schedule == PipelineSchedule::kInterleaved) l.interleave = 1 + below(3);
    if (l.schedule != PipelineSchedule::kPipedream)
      l.offload = one_of({OffloadMode::kNone, OffloadMode::kOptimizer, OffloadMode::kAll});
    if (l.offload == OffloadMode::kOptimizer) l.offload_fraction = one_of({1.0, 0.25, 0.015625});
    for (int64_t k = 1; below(2) == 0 && k < l.pipeline * l.interleave; ++k) l.cut_names.push_back(cat("block.", k));
    if (static_cast<int64_t>(l.cut_names.size()) != l.pipeline * l.interleave - 1) l.cut_names.clear();
    return l;
  }

 private:
  std::mt19937_64 engine_{7};
};

TEST(PinnedLayout, PinsGiveTheLayoutAgain) {
  Random random;
  int different = 0, named = 0;
  for (int k = 0; k < 2000; ++k) {
    const Layout l = random.layout();
    SCOPED_TRACE(describe(l));
    std::vector<std::string> warnings;
    for (const std::optional<int64_t> ranks : {std::optional(l.ranks()), std::optional<int64_t>()}) {
      const auto again = pinned_layout(recipe_of(l), ranks, warnings);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(*again, l);
      EXPECT_EQ(to_pins(*again), to_pins(l));
    }
    different += !l.stages.empty(), named += !l.cut_names.empty();
  }
  EXPECT_GT(different, 100);
  EXPECT_GT(named, 100);
}

TEST(PinnedLayout, APartOfTheStatesGoesWithTheOptimizersAlone) {
  for (OffloadMode mode : {OffloadMode::kNone, OffloadMode::kAll}) {
    Recipe recipe;
    recipe.pin.offload = mode, recipe.pin.offload_fraction = 0.5;
    std::vector<std::string> warnings;
    const auto layout = pinned_layout(recipe, 1, warnings);
    ASSERT_FALSE(layout.ok());
    EXPECT_THAT(std::string(layout.status().message()),
                HasSubstr(cat("pin offload_fraction: 0.5 is of the optimizer's states; expected beside it offload: "
                              "optimizer, found offload: ",
                              enum_name(mode))));
  }
}

TEST(PinnedLayout, RanksThatNoPinNamesAreOfTheDataAxis) {
  Recipe recipe;
  recipe.pin.axes = {{"tensor", 2}, {"pipeline", 3}};
  std::vector<std::string> warnings;
  auto layout = pinned_layout(recipe, 24, warnings);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->data, 4);
  EXPECT_EQ(layout->ranks(), 24);
  EXPECT_EQ(layout->micro_batch, 0);  // as many samples as a rank has
  EXPECT_THAT(std::string(pinned_layout(recipe, 25, warnings).status().message()), HasSubstr("a multiple of 6 ranks"));
}

// Without a cluster a node is taken to have eight ranks.
TEST(PinnedLayout, ShardGroupsOfANode) {
  auto group = [](int64_t data, int64_t expert) {
    Layout l;
    l.data = data, l.expert = expert, l.zero_group = Layout::kNode;
    return l.shard_ranks();
  };
  EXPECT_EQ(group(32, 1), 8);
  EXPECT_EQ(group(8, 2), 8);
  EXPECT_EQ(group(8, 1), 4);
  EXPECT_EQ(group(3, 1), 3);
  Layout all;
  all.data = 6, all.expert = 2;
  EXPECT_EQ(all.shard_ranks(), 12);
  Recipe recipe;
  recipe.pin.axes = {{"data", 16}};
  recipe.pin.zero = 3, recipe.pin.zero_group = PinRecipe::kNode;
  std::vector<std::string> warnings;
  ASSERT_TRUE(pinned_layout(recipe, 16, warnings).ok());
  EXPECT_THAT(warnings, testing::ElementsAre(HasSubstr("taken as groups of 8 of the 16 data-parallel ranks")));
  recipe.pin.zero_group = 3;
  EXPECT_THAT(std::string(pinned_layout(recipe, 16, warnings).status().message()),
              HasSubstr("3 does not divide the 16 data-parallel ranks"));
}

}  // namespace
}  // namespace partita
