// The search against enumeration of the same space, and its errors.
#include "partitioner/planner/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <map>
#include <random>

#include "base/cat.h"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/report/missing.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/planner/space/layout_space.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

bool counted_to_fit(const Layout&, const Prediction& p) { return p.fits; }

// Every layout of the space, by plain loops.
double enumerate(const Problem& p,
                 const std::function<bool(const Layout&, const Prediction&)>& allowed = counted_to_fit) {
  CostModel model(p);
  auto space = layout_space(p, {}, RecomputeMode::kAuto, std::nullopt);
  EXPECT_TRUE(space.ok());
  double best = 1e300;
  auto price = [&](Layout l) {
    if (!invalid(p, l).empty()) return;
    for (bool uneven : {false, true}) {
      if (uneven && (l.pipeline == 1 || l.interleave > 1)) continue;
      Layout x = l;
      if (uneven) x.cuts = model.balanced_cuts(x);
      Prediction r = model.predict(x, false);
      if (allowed(x, r)) best = std::min(best, r.step_seconds);
    }
  };
  Layout l;
  for (int64_t t : space->tensor)
    for (int64_t pp : space->pipeline)
      for (int64_t c : space->context)
        for (int64_t mb : space->micro_batch)
          for (int z : space->zero)
            for (bool sp : {false, true})
              for (RecomputeMode r : space->recompute)
                for (OffloadMode o : space->offload)
                  for (PipelineSchedule s : space->schedule)
                    for (int64_t v = 1; v <= 16; ++v) {
                      if (p.devices() % (t * pp * c) != 0 || (sp && t == 1)) continue;
                      if ((s == PipelineSchedule::kInterleaved) != (v > 1) && pp > 1) continue;
                      if (pp == 1 && (v > 1 || s != space->schedule.front())) continue;
                      l.tensor = t, l.pipeline = pp, l.context = c, l.data = p.devices() / (t * pp * c),
                      l.micro_batch = mb, l.zero = z;
                      if ((z > 0 && l.data * c == 1) || (z >= 2 && pp > 1)) continue;
                      l.sequence_parallel = sp, l.recompute = r, l.offload = o, l.schedule = s, l.interleave = v;
                      price(l);
                    }
  return best;
}

TEST(Search, EqualsEnumerationOnSmallProblems) {
  std::mt19937 rng(7);
  auto pick = [&](std::initializer_list<int> of) { return *(of.begin() + static_cast<int64_t>(rng() % of.size())); };
  for (int round = 0; round < 200; ++round) {
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
    // The simulator may prefer another of the best few. Near the fastest, cuts that are not balanced are tried as well.
    double least = got;
    for (const Candidate& o : found->others) {
      if (o.prediction.fits) least = std::min(least, model.predict(o.layout, false).step_seconds);
    }
    const Layout& l = found->best->layout;
    EXPECT_LE(least, want * (1 + 1e-9)) << round << " " << describe(l);
    const bool balanced = l.cuts.empty() || l.cuts == model.balanced_cuts(l);
    EXPECT_GE(got, want * (balanced ? 1 - 1e-9 : 0.8)) << round << " " << describe(l);
    EXPECT_EQ(found->gap, 0);
  }
}

// In pipelines, too, where layouts that wait for nothing divide the work in another way than those that do.
TEST(Search, FindsTurnsInPipelines) {
  const Workload w = transformer(8, 4096, 2048, 32000);
  const Cluster c = nodes_of_eight(2, "nics: 1, rate: 100Gb/s");
  Problem p = problem(w, c, 64);
  p.own_programs = true;
  CostModel model(p);
  SearchOptions o;
  o.pin.axes = {{"pipeline", 2}, {"tensor", 8}}, o.recompute = RecomputeMode::kNone;
  const auto found = search(model, o);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  std::map<int64_t, double> least;  // by micro-batches that take turns
  for (const int64_t turns : {1, 2})
    for (int64_t micro : {1, 2, 4, 8, 16})
      for (bool sequence : {false, true})
        for (PipelineSchedule s : {PipelineSchedule::k1f1b, PipelineSchedule::kZeroBubble}) {
          Layout l;
          l.pipeline = 2, l.tensor = 8, l.micro_batch = micro, l.sequence_parallel = sequence, l.schedule = s;
          if (turns > 1) l.overlap_micro_batches = turns;
          if (!invalid(p, l).empty()) continue;
          const Prediction r = model.predict(model.with_exchanges(l), false);
          double& best = least.try_emplace(turns, 1e300).first->second;
          if (r.fits) best = std::min(best, r.step_seconds);
        }
  EXPECT_LT(least.at(2), 0.97 * least.at(1));
  EXPECT_LE(model.predict(found->best->layout, false).step_seconds, least.at(2) * (1 + 1e-9));
  EXPECT_EQ(found->best->layout.overlapped(), 2);
}

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
        for (const MemoryUse& m : model.predict(l, false).memory)
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
      o.allocate = bytes;
      auto found = search(model, o);
      ASSERT_TRUE(found.ok()) << found.status();
      const double want = enumerate(p, [&](const Layout& l, const Prediction& counted) {
        return counted.most_memory() - reserve <= 1.05 * room && fits(l);
      });
      refused += static_cast<size_t>(found->allocated) - (found->best ? 1 : 0);
      EXPECT_LT(found->allocated, 40);
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
    o.allocate = [&](const Layout& l) {
      std::vector<double> of_stages;
      for (const MemoryUse& m : model.predict(l, false).memory) of_stages.push_back((m.total() - m.reserve) * program);
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
  o.allocate = [&](const Layout& l) -> absl::StatusOr<std::vector<double>> {
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

TEST(Search, SameBytesEachTime) {
  Workload w = transformer(24, 4096, 2048, 50000);
  Cluster c = cluster(4, 8, "A100-80GB");
  std::string texts[2];
  for (std::string& text : texts) {
    Problem p = problem(w, c, 256);
    CostModel model(p);
    auto found = search(model, {});
    ASSERT_TRUE(found.ok() && found->best);
    text = plan_text(make_plan(p, model, *found, *found->best, {}));
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

TEST(Search, BoundIsABound) {
  Workload w = transformer(12, 2048, 1024, 32000);
  Cluster c = cluster(2, 4, "A100-40GB");
  Problem p = problem(w, c, 32);
  CostModel model(p);
  for (int64_t t : {1, 2, 4})
    for (int64_t pp : {1, 2})
      for (auto s : {PipelineSchedule::k1f1b, PipelineSchedule::kZeroBubble}) {
        Layout l;
        l.tensor = t, l.pipeline = pp, l.data = 8 / t / pp, l.schedule = s;
        for (bool replay : {false, true})
          EXPECT_LE(model.lower_bound(l), model.predict(l, replay).step_seconds * (1 + 1e-9));
      }
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
