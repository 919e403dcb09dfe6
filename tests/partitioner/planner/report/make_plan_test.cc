#include "partitioner/planner/report/make_plan.h"

#include <gtest/gtest.h>

#include "partitioner/planner/report/planned_step.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

TEST(MakePlan, ThePlanHasThePinsAndTheTimesOfItsLayout) {
  Workload w = transformer(8, 2048, 1024, 32000);
  Cluster c = cluster(2, 4, "A100-40GB");
  Problem p = problem(w, c, 32);
  CostModel model(p);
  SearchOptions o;
  o.pin.axes = {{"pipeline", 4}};
  auto found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best);
  const Plan plan = make_plan(p, model, *found, *found->best, {});
  EXPECT_EQ(plan.pin, to_pins(found->best->layout));
  auto step = planned_step(plan);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_DOUBLE_EQ(simulate(step->simulation).seconds, simulate(model.simulation(found->best->layout)).seconds);
}

}  // namespace
}  // namespace partita
