// The search against enumeration of the same space, and what it refuses.
#include "partitioner/planner/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/plan_file.h"
#include "tests/partitioner/support/enumerated_space.h"
#include "tests/partitioner/support/search_problems.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

TEST(Search, EqualsEnumerationOnSmallProblems) {
  std::mt19937 rng(7);
  auto pick = [&](std::initializer_list<int> of) { return *(of.begin() + static_cast<int64_t>(rng() % of.size())); };
  for (int round = 0; round < sample_or_all(200, 2000); ++round) {
    int blocks = pick({1, 2, 3, 4, 5, 6});
    Workload w = transformer(blocks, 256 * pick({1, 2, 4, 8, 16}), 512 * pick({1, 2, 4}), 1000 * pick({1, 8, 50}));
    std::string device = std::vector<std::string>{"A100-40GB", "RTX-4090", "L4", "H100-80GB"}[rng() % 4];
    Cluster c = cluster(pick({1, 2}), pick({1, 2, 4}), device);
    Problem p = problem(w, c, pick({4, 8, 12, 16}));
    CostModel model(p);
    auto found = search(model, {});
    ASSERT_TRUE(found.ok()) << found.status();
    double want = enumerate(p);
    if (!found->best) {
      EXPECT_EQ(want, 1e300);
      continue;
    }
    double got = model.predict(found->best->layout, false).step_seconds;
    // The simulator may prefer another of the best few; by the closed form it is within what replays differ by.
    EXPECT_LE(want, got + 1e-12);
    double least = got;
    for (const Candidate& o : found->others) {
      if (o.prediction.fits) least = std::min(least, model.predict(o.layout, false).step_seconds);
    }
    EXPECT_NEAR(least, want, 1e-9 * want) << round << " " << describe(found->best->layout);
    EXPECT_EQ(found->gap, 0);
  }
}

TEST(Search, SameBytesEachTime) {
  Workload w = transformer(24, 4096, 2048, 50000);
  Cluster c = cluster(4, 8, "A100-80GB");
  std::string texts[2];
  for (std::string& text : texts) {
    Problem p = problem(w, c, 256);
    CostModel model(p);
    auto found = search(model, {});
    ASSERT_TRUE(found.ok() && found->best);
    text = plan_text(plan_json(p, model, *found, *found->best, {}));
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(Search, PinsAreKept) {
  Workload w = transformer(24, 4096, 2048, 50000);
  Cluster c = cluster(4, 8, "A100-80GB");
  Problem p = problem(w, c, 256);
  CostModel model(p);
  SearchOptions o;
  o.pin.axes = {{"tensor", 4}, {"pipeline", 2}};
  o.pin.zero = 1, o.pin.micro_batch = 1, o.pin.schedule = PipelineSchedule::k1f1b;
  auto found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.tensor, 4);
  EXPECT_EQ(found->best->layout.pipeline, 2);
  EXPECT_EQ(found->best->layout.data, 4);
  EXPECT_EQ(found->best->layout.zero, 1);
  EXPECT_TRUE(found->best->layout.cuts.empty());
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
  auto pins = plan_pins(plan_json(p, model, *differ, *differ->best, {}));
  ASSERT_TRUE(pins.ok()) << pins.status();
  EXPECT_EQ(pins->stages[1].at("tensor"), 4);
  o.pin.stages = {{{"data", 4}}, {{"data", 2}}};
  auto refused = search(model, o);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("take 6 ranks, and --ranks says 8"));
  // Six devices with the second stage: it has the same samples on more of them.
  o.pin.stages = {{{"data", 2}}, {{"data", 2}, {"tensor", 3}}};
  auto sizes = search(model, o);
  ASSERT_TRUE(sizes.ok() && sizes->best) << sizes.status();
  EXPECT_EQ(sizes->best->layout.devices(), 8);
  EXPECT_EQ(sizes->best->layout.devices_of_stage(1), 6);
  EXPECT_EQ(sizes->best->layout.first_device(1), 2);
}

TEST(Search, PinnedZeroKeepsStatesOnTheDevices) {
  Workload w = transformer(64, 8192, 2048, 50000);
  Cluster c = cluster(1, 8, "A100-80GB");
  Problem p = problem(w, c, 8);
  SearchOptions o;
  o.pin.axes = {{"data", 1}, {"tensor", 8}, {"pipeline", 1}, {"context", 1}};
  o.pin.zero = 0, o.pin.micro_batch = 1;
  CostModel model(p);
  auto found = search(model, o);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->best);
  o.pin.offload = OffloadMode::kOptimizer;
  found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.offload, OffloadMode::kOptimizer);
}

TEST(Search, ContradictingPinsAreRefused) {
  Workload w = transformer(4, 1024, 512, 1000);
  Cluster c = cluster(1, 8, "A100-80GB");
  Problem p = problem(w, c, 8);
  CostModel model(p);
  SearchOptions o;
  o.pin.axes = {{"tensor", 3}};
  auto found = search(model, o);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(std::string(found.status().message()).find("3 does not divide the 8 devices"), std::string::npos);
  o.pin.axes = {{"data", 8}};
  o.pin.micro_batch = 3;
  found = search(model, o);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(std::string(found.status().message()).find("not a multiple"), std::string::npos) << found.status();
}

// A file that takes two samples at a time runs twice for four: no micro-batch has samples of both runs.
TEST(Search, MicroBatchesLieWithinTheRunsOfAFixedBatch) {
  Workload w = transformer(4, 1024, 512, 1000);
  Cluster one = cluster(1, 1, "A100-80GB"), four = cluster(1, 4, "A100-80GB");
  SearchOptions o;
  o.pin.axes = {{"tensor", 1}, {"pipeline", 1}};
  auto largest = [&](const Cluster& c, int64_t fixed) {
    w.exported_batch = fixed;
    Problem p = problem(w, c, 4);
    CostModel model(p);
    auto found = search(model, o);
    EXPECT_TRUE(found.ok() && found->best) << found.status();
    return found.ok() && found->best ? found->best->layout.micro_batch : 0;
  };
  EXPECT_EQ(largest(one, 0), 4);
  EXPECT_EQ(largest(one, 2), 2);
  EXPECT_EQ(largest(four, 2), 1);
  o.pin.micro_batch = 4;
  w.exported_batch = 2;
  Problem p = problem(w, one, 4);
  CostModel model(p);
  auto found = search(model, o);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(std::string(found.status().message())
                .find("the model file takes 2 samples at a time, 2 of them on a rank: not a multiple of micro-batch 4"),
            std::string::npos)
      << found.status();
}

// A statistic over the samples of a run: each rank computes its part of a run at once.
TEST(Search, RunsInOnePieceHaveNoMicroBatches) {
  Workload w = transformer(4, 1024, 512, 1000);
  w.whole_runs = "Mul 'aux' needs all samples";
  Cluster four = cluster(1, 4, "A100-80GB");
  for (int64_t fixed : {0, 8}) {
    w.exported_batch = fixed;
    Problem p = problem(w, four, 32);
    CostModel model(p);
    auto found = search(model, {});
    ASSERT_TRUE(found.ok() && found->best) << found.status();
    found->others.push_back(*found->best);
    for (const Candidate& c : found->others) {
      const int64_t runs = fixed == 0 ? 1 : 4, ranks = c.layout.data;
      EXPECT_TRUE(c.layout.micro_batch * ranks == 32 / runs || (ranks > 1 && c.layout.micro_batch == fixed))
          << describe(c.layout);
    }
    SearchOptions o;
    o.pin.micro_batch = 1, o.pin.axes = {{"data", 2}};
    auto pinned = search(model, o);
    ASSERT_FALSE(pinned.ok());
    EXPECT_THAT(std::string(pinned.status().message()),
                testing::HasSubstr("at once, not in micro-batches of 1: Mul 'aux'"));
  }
}

TEST(Search, DevicesThatAreTheHostOffloadNothing) {
  Workload w = transformer(2, 256, 512, 1000);
  Cluster c = cluster(1, 2, "cpu");
  Problem p = problem(w, c, 4);
  CostModel model(p);
  auto found = search(model, {});
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.offload, OffloadMode::kNone);
  SearchOptions o;
  o.pin.offload = OffloadMode::kOptimizer;
  found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.offload, OffloadMode::kOptimizer);
  EXPECT_GT(found->best->prediction.step_seconds, 0);
}

// What fits easily stays on the device: the host's updates have launches too.
TEST(Search, SmallModelsOffloadNothing) {
  Workload w = transformer(2, 64, 32, 512);
  for (const char* device : {"A100-80GB", "L4"}) {
    Cluster c = cluster(1, 4, device);
    CostModel model(problem(w, c, 8));
    auto found = search(model, {});
    ASSERT_TRUE(found.ok() && found->best) << found.status();
    EXPECT_EQ(found->best->layout.offload, OffloadMode::kNone) << describe(found->best->layout);
  }
}

TEST(Search, FixesFit) {
  Workload w = transformer(80, 8192, 4096, 128000);
  Cluster c = cluster(1, 1, "A100-80GB");
  Problem p = problem(w, c, 16);
  CostModel model(p);
  auto found = search(model, {});
  ASSERT_TRUE(found.ok());
  ASSERT_FALSE(found->best);
  ASSERT_TRUE(found->nearest);
  EXPECT_GT(found->nearest->prediction.missing_bytes, 0);
  std::vector<Fix> fixes = find_fixes(p, {}, library());
  ASSERT_FALSE(fixes.empty());
  for (const Fix& f : fixes) {
    EXPECT_TRUE(f.candidate.prediction.fits) << f.change;
    EXPECT_EQ(f.change.find("cpu"), std::string::npos) << f.change;
  }
}

// Pinned to what does not fit: changes of the layout come before other hardware.
TEST(Search, FixesOfTheLayoutComeFirst) {
  Workload w = transformer(24, 2048, 1024, 32000);
  Cluster c = cluster(1, 8, "RTX-4090");
  Problem p = problem(w, c, 512);
  SearchOptions options;
  options.pin.zero = 0, options.pin.micro_batch = 64, options.pin.recompute = RecomputeMode::kNone;
  CostModel model(p);
  auto found = search(model, options);
  ASSERT_TRUE(found.ok() && !found->best) << found.status();
  std::vector<Fix> fixes = find_fixes(p, options, library());
  ASSERT_GT(fixes.size(), 1u);
  EXPECT_TRUE(fixes[0].same_hardware) << fixes[0].change;
  EXPECT_TRUE(std::is_partitioned(fixes.begin(), fixes.end(), [](const Fix& f) { return f.same_hardware; }));
}

TEST(Search, LargeSpacesAreSearchedInSeconds) {
  Workload w = transformer(126, 16384, 8192, 128256);
  Cluster c = cluster(512, 8, "H100-80GB");
  Problem p = problem(w, c, 2048);
  CostModel model(p);
  std::clock_t start = std::clock();  // processor time: other programs do not count
  auto seconds = [&] { return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC; };
  auto found = search(model, {});
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_LT(seconds(), 30);
  Workload deep = transformer(1024, 4096, 2048, 50000);
  Cluster d = cluster(32, 8, "H100-80GB");
  Problem q = problem(deep, d, 512);
  CostModel other(q);
  start = std::clock();
  found = search(other, {});
  ASSERT_TRUE(found.ok() && found->best);
  EXPECT_LT(seconds(), 30);
}

}  // namespace
}  // namespace partita
