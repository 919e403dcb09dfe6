#include "partitioner/planner/report/make_plan.h"

#include <gtest/gtest.h>

#include "partitioner/planner/report/explain.h"
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

// The count and the program are two numbers: each line says which it has, and the program's is also said with the
// reserve, as sweeps say it.
TEST(MakePlan, MemoryInWordsSaysWhatItIsOf) {
  Plan plan;
  plan.stages.resize(1);
  plan.stages[0].ranks = 1, plan.stages[0].capacity = 80e9;
  plan.stages[0].memory.activations = 60e9, plan.stages[0].memory.reserve = 2e9;
  plan.predicted.fits = true, plan.predicted.program_bytes = {50'000'000'000};
  const std::string text = summary(plan);
  EXPECT_NE(text.find("memory of the fullest stage (0 of 1), as counted: 62.0 GB of 80.0 GB\n"), text.npos) << text;
  EXPECT_NE(text.find("its program, as compile lays it out: 50.0 GB of 78.0 GB beside the reserve, 52.0 GB of 80.0 GB "
                      "with it (stage 0 of 1)\n"),
            text.npos)
      << text;
}

}  // namespace
}  // namespace partita
