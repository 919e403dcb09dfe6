// Where stages begin: cuts that are pinned, priced, found and named.
#include "partitioner/planner/workload/pinned_cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/planner/search/search.h"
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

TEST(PinnedCuts, PinnedCutsArePriced) {
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
  nlohmann::json plan = plan_json(p, model, *found, *found->best, {});
  EXPECT_EQ(plan["stages"][1]["chunks"][0]["first_unit"], 6);
  auto pins = plan_pins(plan);
  ASSERT_TRUE(pins.ok()) << pins.status();
  EXPECT_EQ(pins->cuts, o.pin.cuts);
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

TEST(PinnedCuts, FoundCutsArePinnedByNames) {
  Workload w = transformer(8, 2048, 1024, 32000);
  Cluster c = cluster(1, 4, "A100-80GB");
  Problem p = problem(w, c, 32);
  SearchOptions o;
  o.pin.axes = {{"data", 1}, {"tensor", 1}, {"context", 1}};
  auto plan_of = [&](const SearchResult& found) {
    CostModel model(p);
    return plan_json(p, model, found, *found.best, {});
  };
  CostModel unnamed(p);
  auto found = search(unnamed, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.pipeline, 4);
  EXPECT_FALSE(plan_of(*found)["pin"].contains("cuts"));
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
  EXPECT_EQ(plan_of(*found)["pin"]["cuts"].get<std::vector<std::string>>(), names);
  EXPECT_THAT(summary(plan_of(*found)), testing::Not(testing::HasSubstr("balances")));
  // The plan's pins give the plan again.
  const double seconds = found->best->prediction.step_seconds;
  o.pin = to_pins(found->best->layout);
  found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_DOUBLE_EQ(found->best->prediction.step_seconds, seconds);
}

// A name that an earlier unit has too, or that is a glob, is none to begin a part with.
TEST(PinnedCuts, CutsAreNamedByWhatTheirPartAloneHas) {
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

TEST(PinnedCuts, CutsThatCannotBeAreRefused) {
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

}  // namespace
}  // namespace partita
