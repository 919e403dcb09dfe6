// Where stages begin, as it is found and as it is pinned, and stages that differ.
#include "partitioner/planner/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/workload/pinned_cuts.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

// A norm and two products in each block, as the analysis names them.
void name_places(Workload& w) {
  for (int unit = 0; unit < static_cast<int>(w.units.size()); ++unit) {
    const std::string block = cat("layers.", unit - 1);
    if (w.unit(static_cast<size_t>(unit)).name == "before the blocks") {
      w.places.push_back({unit, false, {"/embed/Gather", "embed.weight"}});
    } else if (w.unit(static_cast<size_t>(unit)).name == "after the blocks") {
      w.places.push_back({unit, false, {"/norm/LayerNormalization", "norm.weight"}});
      w.places.push_back({unit, true, {"/head/MatMul", "head.weight"}});
    } else {
      w.places.push_back({unit, false, {block + "/Pow"}});  // of a norm in single steps
      w.places.push_back({unit, false, {block + "/Mul", block + ".norm.weight"}});
      w.places.push_back({unit, true, {block + "/MatMul", block + ".up.weight"}});
    }
  }
}

TEST(Search, PinnedCutsArePriced) {
  Workload w = transformer(8, 2048, 1024, 32000);
  name_places(w);
  Cluster c = cluster(1, 4, "A100-80GB");
  Problem p = problem(w, c, 32);
  CostModel model(p);
  SearchOptions o;
  o.pin.axes = {{"data", 2}};
  o.pin.zero = 0, o.pin.micro_batch = 2, o.pin.schedule = PipelineSchedule::k1f1b;
  o.recompute = RecomputeMode::kNone;
  o.pin.cuts = {"layers.5.*"};
  auto found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  Layout same;  // embedding and five blocks, three blocks and head
  same.data = 2, same.pipeline = 2, same.micro_batch = 2, same.cuts = {6, 4};
  EXPECT_EQ(found->best->layout.pipeline, 2);
  EXPECT_EQ(found->best->layout.cuts, same.cuts);
  EXPECT_DOUBLE_EQ(found->best->prediction.step_seconds, model.predict(same, true).step_seconds);
  const Plan plan = make_plan(p, model, *found, *found->best, {});
  EXPECT_EQ(plan.stages[1].chunks[0].first_unit, 6);
  EXPECT_EQ(plan.pin.cuts, o.pin.cuts);
  // Chunks of interleaved stages, and a number of parts that the pipeline does not have.
  o.pin.schedule = PipelineSchedule::kInterleaved;
  o.pin.cuts = {"layers.1.*", "layers.3.*", "norm.*"};
  found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.interleave, 2);
  EXPECT_EQ(found->best->layout.cuts, (std::vector<int>{2, 2, 5, 1}));
  o.pin.schedule = PipelineSchedule::k1f1b, o.pin.axes["pipeline"] = 2;
  found = search(model, o);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()), testing::HasSubstr("3 cuts make 4 parts"));
}

TEST(Search, FoundCutsArePinnedByNames) {
  Workload w = transformer(8, 2048, 1024, 32000);
  Cluster c = cluster(1, 4, "A100-80GB");
  Problem p = problem(w, c, 32);
  SearchOptions o;
  o.pin.axes = {{"data", 1}, {"tensor", 1}, {"context", 1}};
  auto plan_of = [&](const SearchResult& found) {
    CostModel model(p);
    return make_plan(p, model, found, *found.best, {});
  };
  CostModel unnamed(p);
  auto found = search(unnamed, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.pipeline, 4);
  EXPECT_THAT(plan_of(*found).pin.cuts, testing::IsEmpty());
  EXPECT_THAT(summary(plan_of(*found)), testing::HasSubstr("compile balances the stages anew"));
  const std::vector<int> parts = found->best->layout.cuts.empty() ? unnamed.even_cuts(found->best->layout)  //
                                                                  : found->best->layout.cuts;
  name_places(w);
  CostModel model(p);
  found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  const std::vector<std::string>& names = found->best->layout.cut_names;
  EXPECT_EQ(names.size(), parts.size() - 1);
  auto pinned = pinned_cuts(w, names);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(*pinned, parts);
  EXPECT_EQ(plan_of(*found).pin.cuts, names);
  EXPECT_THAT(summary(plan_of(*found)), testing::Not(testing::HasSubstr("balances")));
  // The plan's pins give the plan again.
  const double seconds = found->best->prediction.step_seconds;
  o.pin = to_pins(found->best->layout);
  found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_DOUBLE_EQ(found->best->prediction.step_seconds, seconds);
}

// A name that an earlier unit has too, or that is a glob, is none to begin a part with.
TEST(Search, CutsAreNamedByWhatTheirPartAloneHas) {
  Workload w = transformer(2, 2048, 1024, 32000);
  w.places = {{0, false, {"embed", "tied"}},
              {1, false, {"add"}},
              {1, false, {"first", "tied", "layers.0"}},
              {2, false, {"add", "layers.[1]"}},
              {2, false, {"second"}},
              {2, true, {"third", "layers.1.up"}},
              {3, true, {"head"}}};
  EXPECT_EQ(names_of_cuts(w, {1, 1, 2}), (std::vector<std::string>{"add", "second"}));
  EXPECT_TRUE(names_of_cuts(w, {1, 2, 1}).empty());  // the last begins with none of its own
  EXPECT_TRUE(names_of_cuts(w, {1, 0, 3}).empty());
}

TEST(Search, CutsThatCannotBeAreRefused) {
  Workload w = transformer(8, 2048, 1024, 32000);
  name_places(w);
  for (const auto& [cuts, said] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"layers.9.*"}, "no forward node reads a parameter"},
           {{"layers.5.*", "layers.2.*"}, "expected cuts in the order of the model"},
           {{"embed.*"}, "leaves nothing to the stage before"},
           {{"layers.3.up.*"},
            "first matches 'layers.3.up.weight', inside of block 3, which a plan keeps in one piece; the nearest "
            "places "
            "to cut are 'layers.3/Pow' (block 3) and 'layers.4/Pow' (block 4)"},
           {{"head.weight"}, "the nearest places to cut are 'norm.weight' (after the blocks);"}}) {
    auto parts = pinned_cuts(w, cuts);
    ASSERT_FALSE(parts.ok());
    EXPECT_THAT(std::string(parts.status().message()), testing::HasSubstr(said));
  }
}

// Each stage of a plan whose stages differ has what it would have if all were like it.
TEST(Search, StagesThatDifferArePriced) {
  Workload w = transformer(8, 2048, 1024, 32000);
  Cluster c = cluster(1, 8, "A100-80GB");
  Problem p = problem(w, c, 64);
  CostModel model(p);
  SearchOptions o;
  o.pin.zero = 1, o.pin.micro_batch = 2, o.pin.schedule = PipelineSchedule::k1f1b;
  o.recompute = RecomputeMode::kNone;
  o.pin.stages = {{{"data", 4}}, {{"data", 4}}};
  auto alike = search(model, o);
  ASSERT_TRUE(alike.ok() && alike->best) << alike.status();
  EXPECT_TRUE(alike->best->layout.stages.empty());
  o.pin.stages = {{{"data", 4}}, {{"tensor", 4}}};
  auto differ = search(model, o);
  ASSERT_TRUE(differ.ok() && differ->best) << differ.status();
  const Layout& l = differ->best->layout;
  ASSERT_EQ(l.stages.size(), 2u);
  EXPECT_EQ(micro_batches(p, l), 8);
  Layout data, tensor;  // eight samples a micro-batch
  data.data = 4, data.pipeline = 2, data.micro_batch = 2, data.zero = 1;
  tensor.tensor = 4, tensor.pipeline = 2, tensor.micro_batch = 8, tensor.zero = 1;
  tensor.sequence_parallel = l.sequence_parallel;
  const Prediction both = model.predict(l, true), first = model.predict(data, true),
                   second = model.predict(tensor, true);
  EXPECT_DOUBLE_EQ(both.memory[0].total(), first.memory[0].total());
  EXPECT_DOUBLE_EQ(both.memory[1].total(), second.memory[1].total());
  // Stage 1 gathers the samples of four ranks in forward; stage 0 slices the gradients.
  const double input = 2048. * 1024 * 8 * 2;
  const double gather = collective_time(c.groups[0], CollectiveKind::kAllGather, {4, 1}, input).seconds;
  auto times = [&](const Layout& x, size_t stage) { return model.simulation(x).chunks[stage][0]; };
  EXPECT_DOUBLE_EQ(times(l, 0).forward, times(data, 0).forward);
  EXPECT_DOUBLE_EQ(times(l, 0).backward, times(data, 0).backward);
  EXPECT_NEAR(times(l, 1).forward, times(tensor, 1).forward + gather, 1e-12);
  EXPECT_DOUBLE_EQ(times(l, 1).backward, times(tensor, 1).backward);
  EXPECT_EQ(make_plan(p, model, *differ, *differ->best, {}).pin.stages[1].at("tensor"), 4);
  o.pin.stages = {{{"data", 4}}, {{"data", 2}}};
  auto refused = search(model, o);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("take 6 ranks, and --ranks says 8"));
  // Six devices with the second stage: it has the same samples on more of them.
  o.pin.stages = {{{"data", 2}}, {{"data", 2}, {"tensor", 3}}};
  auto sizes = search(model, o);
  ASSERT_TRUE(sizes.ok() && sizes->best) << sizes.status();
  EXPECT_EQ(sizes->best->layout.ranks(), 8);
  EXPECT_EQ(sizes->best->layout.ranks_of_stage(1), 6);
  EXPECT_EQ(sizes->best->layout.first_rank(1), 2);
}

}  // namespace
}  // namespace partita
