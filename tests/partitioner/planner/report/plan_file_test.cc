#include "partitioner/planner/report/plan_file.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

TEST(PlanFile, PinsAndSimulationComeBack) {
  Workload w = transformer(8, 2048, 1024, 32000);
  Cluster c = cluster(2, 4, "A100-40GB");
  Problem p = problem(w, c, 32);
  CostModel model(p);
  SearchOptions o;
  o.pin.axes = {{"pipeline", 4}};
  auto found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best);
  nlohmann::json plan = plan_json(p, model, *found, *found->best, {});
  auto pins = plan_pins(plan);
  ASSERT_TRUE(pins.ok()) << pins.status();
  EXPECT_EQ(*pins, to_pins(found->best->layout));
  auto s = plan_simulation(plan);
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_DOUBLE_EQ(simulate(*s).seconds, simulate(model.simulation(found->best->layout)).seconds);
  plan["stages"] = "none";
  EXPECT_FALSE(plan_simulation(plan).ok());
  plan["pin"]["zero"] = 7;
  EXPECT_FALSE(plan_pins(plan).ok());
  EXPECT_EQ(read_plan("/nowhere/plan.json").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace partita
