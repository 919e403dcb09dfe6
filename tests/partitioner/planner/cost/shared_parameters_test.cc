// Parameters that several stages read: what they send each other, and what that adds to a step.
#include <gtest/gtest.h>

#include "partitioner/planner/cost/cost_model.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

constexpr double kTied = 1e7;

// A transformer of 4 blocks whose last unit reads what the first one has.
Workload tied_transformer() {
  Workload w = transformer(4, 1024, 512, 8192);
  w.shared = {{{0, 5}, {kTied, 0}}};
  return w;
}

class Shared : public testing::Test {
 protected:
  Problem own(int64_t batch = 8) {
    Problem p = problem(w_, c_, batch);
    p.own_programs = true;
    return p;
  }
  std::vector<PlanTraffic::Shared> sent(const Layout& l) { return CostModel(own()).traffic(l).shared; }
  Prediction predicted(const Layout& l) { return CostModel(own()).predict(l, true); }

  Workload w_ = tied_transformer();
  Cluster c_ = cluster(1, 8, "A100-80GB");
};

TEST_F(Shared, GoesToTheStageThatReadsItAndComesBackAsAGradient) {
  Layout l;
  l.pipeline = 2;
  auto expect = [&](double parameters, double gradients) {
    const auto list = sent(l);
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0].owner, 0);
    EXPECT_EQ(list[0].reader, 1);
    EXPECT_NEAR(list[0].parameters, parameters, 1);
    EXPECT_NEAR(list[0].gradients, gradients, 1);
  };
  expect(4 * kTied, 4 * kTied);
  l.tensor = 2;  // each rank its part
  expect(4 * kTied, 4 * kTied);
  l.tensor = 1, l.data = 2;  // each its copy
  expect(8 * kTied, 8 * kTied);
}

TEST_F(Shared, IsOfStagesAlone) {
  Layout l;
  EXPECT_TRUE(sent(l).empty());
  l.pipeline = 2;
  w_.shared[0].units = {0, 2};  // both in the first stage
  EXPECT_TRUE(sent(l).empty());
  w_.shared[0].units = {0, 4, 5};  // two readers of one stage
  EXPECT_EQ(sent(l).size(), 1u);
  l.pipeline = 4;
  EXPECT_EQ(sent(l).size(), 1u);
  w_.shared[0].units = {0, 2, 5};
  EXPECT_EQ(sent(l).size(), 2u);
}

// Over a slow wire passes hide next to nothing of it, over a fast one all.
TEST_F(Shared, AddsToAStep) {
  Layout l;
  l.pipeline = 2;
  for (const double bandwidth : {1e8, 1e13}) {
    c_.groups[0].links.back().link.bandwidth = bandwidth;
    w_.shared.clear();
    const Prediction apart = predicted(l);
    EXPECT_EQ(apart.breakdown.tied, 0);
    w_ = tied_transformer();
    const Prediction tied = predicted(l);
    const double each = collective_time(c_.groups[0], CollectiveKind::kSend, {2, 1}, 4 * kTied).seconds;
    EXPECT_NEAR(tied.step_seconds - apart.step_seconds, tied.breakdown.tied, 1e-9);
    EXPECT_LT(tied.breakdown.tied, 2 * each);
    const bool slow = bandwidth < 1e9;
    EXPECT_EQ(tied.breakdown.tied > 1.8 * each, slow);
    EXPECT_EQ(tied.breakdown.tied == 0, !slow);
  }
  l.pipeline = 1;
  EXPECT_EQ(predicted(l).breakdown.tied, 0);
}

TEST_F(Shared, IsNotOfPublishedSoftware) {
  Layout l;
  l.pipeline = 2;
  CostModel model(problem(w_, c_, 8));
  EXPECT_TRUE(model.traffic(l).shared.empty());
  EXPECT_EQ(model.predict(l, false).breakdown.tied, 0);
}

TEST_F(Shared, IsInTheTrafficOfRanks) {
  Layout l;
  l.pipeline = 2, l.data = 2;
  const auto sent_by = [&] {
    double sum = 0;
    visit_traffic(CostModel(own()).traffic(l), [&](TrafficKind kind, int64_t from, int64_t to, double bytes) {
      if (kind == TrafficKind::kPipeline && from == 1 && to == 3) sum += bytes;
    });
    return sum;
  };
  const double tied = sent_by();
  w_.shared.clear();
  EXPECT_NEAR(tied - sent_by(), 4 * kTied, 1);
}

}  // namespace
}  // namespace partita
