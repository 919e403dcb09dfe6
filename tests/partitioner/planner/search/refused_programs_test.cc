// What the compiler lays out decides over what the cost model counts.
#include "partitioner/planner/search/refused_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/search/search.h"
#include "tests/partitioner/support/enumerated_space.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

// What the compiler lays out decides: of layouts that fit by the cost model's count, or are over by less than the
// count's error, the fastest is taken whose program fits.
TEST(Search, TakesTheFastestLayoutWhoseProgramFits) {
  size_t refused = 0, found_one = 0;
  for (int blocks : {2, 4, 6}) {
    for (double factor : {0.9, 1.1, 1.5, 3.}) {
      SCOPED_TRACE(cat(blocks, " blocks, ", factor));
      Workload w = transformer(blocks, 4096, 2048, 32000);
      Cluster c = cluster(1, 4, "RTX-4090");
      Problem p = problem(w, c, 16);
      CostModel model(p);
      // Programs keep other activations than the model counts, and those that compute again most.
      auto bytes = [&](const Layout& l) {
        std::vector<double> of_stages;
        for (const MemoryParts& m : model.predict(l, false).memory)
          of_stages.push_back(m.parameters + m.gradients + m.optimizer +
                              (m.activations + m.transient) * (l.recompute == RecomputeMode::kFull ? 2 : 1) * factor);
        return of_stages;
      };
      const double reserve = c.groups[0].device.reserve_bytes;
      const double room = c.groups[0].device.memory_bytes - reserve;
      auto fits = [&](const Layout& l) {
        const std::vector<double> of_stages = bytes(l);
        return *std::max_element(of_stages.begin(), of_stages.end()) <= room;
      };
      SearchOptions o;
      o.lay_out = bytes;
      auto found = search(model, o);
      ASSERT_TRUE(found.ok()) << found.status();
      const double want = enumerate(p, [&](const Layout& l, const Prediction& counted) {
        return counted.most_memory() - reserve <= 1.05 * room && fits(l);
      });
      refused += static_cast<size_t>(found->laid_out) - (found->best ? 1 : 0);
      EXPECT_LT(found->laid_out, 40);
      if (!found->best) {
        EXPECT_EQ(want, 1e300);
        continue;
      }
      ++found_one;
      EXPECT_TRUE(found->best->prediction.fits);
      EXPECT_TRUE(fits(found->best->layout));
      EXPECT_EQ(found->best->prediction.program_bytes, bytes(found->best->layout));
      double least = model.predict(found->best->layout, false).step_seconds;
      for (const Candidate& other : found->others) {  // the simulator may prefer another of the best few
        if (other.prediction.fits && fits(other.layout))
          least = std::min(least, model.predict(other.layout, false).step_seconds);
      }
      EXPECT_NEAR(least, want, 1e-9 * want) << describe(found->best->layout);
      for (const Candidate& other : found->others) {
        if (other.prediction.program_bytes.empty()) continue;
        EXPECT_THAT(explain_missing(other), testing::HasSubstr("its program needs"));
      }
    }
  }
  EXPECT_GT(refused, 3u);
  EXPECT_GT(found_one, 5u);
}

TEST(Search, TheCompilerIsAskedWithinTheErrorOfTheCount) {
  Workload w = transformer(6, 4096, 2048, 32000);
  Cluster c = cluster(1, 4, "RTX-4090");
  DeviceProfile& device = c.groups[0].device;
  device.memory_bytes = 1e12;
  Problem p = problem(w, c, 16);
  CostModel roomy(p);
  auto fastest = search(roomy, {});
  ASSERT_TRUE(fastest.ok() && fastest->best) << fastest.status();
  const Layout wanted = fastest->best->layout;
  const double counted = fastest->best->prediction.most_memory() - device.reserve_bytes;
  auto offered = [&](double over, double program) {
    device.memory_bytes = counted / (1 + over) + device.reserve_bytes;
    CostModel model(p);
    SearchOptions o;
    o.lay_out = [&](const Layout& l) {
      std::vector<double> of_stages;
      for (const MemoryParts& m : model.predict(l, false).memory)
        of_stages.push_back((m.total() - m.reserve) * program);
      return of_stages;
    };
    auto found = search(model, o);
    EXPECT_TRUE(found.ok() && found->best) << found.status();
    EXPECT_TRUE(found->best->prediction.fits);
    EXPECT_LE(found->best->prediction.most_memory(), device.memory_bytes);
    return found->best->layout == wanted;
  };
  EXPECT_TRUE(offered(0.04, 0.95));
  EXPECT_FALSE(offered(0.04, 0.97));  // its program does not fit either
  EXPECT_FALSE(offered(0.07, 0.9));   // the count is not that far off
}

TEST(Search, LayoutsThatTheCompilerRefusesAreNotOffered) {
  Workload w = transformer(4, 2048, 1024, 8000);
  Cluster c = cluster(1, 4, "RTX-4090");
  Problem p = problem(w, c, 16);
  CostModel model(p);
  SearchOptions o;
  auto free = search(model, o);
  ASSERT_TRUE(free.ok() && free->best) << free.status();
  const int64_t data = free->best->layout.data;
  o.lay_out = [&](const Layout& l) -> absl::StatusOr<std::vector<double>> {
    if (l.data == data) return absl::InvalidArgumentError("no such data axis");
    return std::vector<double>(static_cast<size_t>(l.pipeline), 0.);
  };
  auto other = search(model, o);
  ASSERT_TRUE(other.ok() && other->best) << other.status();
  EXPECT_NE(other->best->layout.data, data);
  o.pin.axes = {{"data", data}, {"tensor", free->best->layout.tensor}, {"pipeline", free->best->layout.pipeline}};
  o.pin.micro_batch = free->best->layout.micro_batch, o.pin.zero = free->best->layout.zero;
  auto none = search(model, o);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.status().message()), testing::HasSubstr("no such data axis"));
}

}  // namespace
}  // namespace partita
