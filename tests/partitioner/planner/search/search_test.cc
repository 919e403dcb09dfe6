// The search against enumeration of the same space, its errors, and what must hold of every prediction.
#include "partitioner/planner/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <random>

#include "base/cat.h"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/report/missing.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/planner/report/planned_step.h"
#include "partitioner/planner/search/fixes.h"
#include "partitioner/planner/space/layout_space.h"
#include "partitioner/planner/workload/pinned_cuts.h"
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

TEST(Memory, FallsWithEverySplit) {
  Workload w = transformer(24, 4096, 2048, 50000);
  Cluster c = cluster(4, 8, "A100-80GB");
  Problem p = problem(w, c, 256);
  CostModel model(p);
  Layout l;
  l.data = 8, l.tensor = 4;
  auto memory = [&](const Layout& x) { return model.predict(x, false).most_memory(); };
  double before = memory(l);
  for (int z : {1, 2, 3}) {
    l.zero = z;
    EXPECT_LT(memory(l), before * 1.0001) << z;
    before = memory(l);
  }
  l.zero = 0;
  Layout full = l, sequence = l, wide = l, offload = l;
  full.recompute = RecomputeMode::kFull;
  EXPECT_LT(memory(full), memory(l));
  sequence.sequence_parallel = true;
  EXPECT_LT(memory(sequence), memory(l));
  wide.tensor = 8, wide.data = 4;
  EXPECT_LT(memory(wide), memory(l));
  offload.offload = OffloadMode::kOptimizer;
  EXPECT_LT(memory(offload), memory(l));
  Layout more = l;
  more.micro_batch = 2;
  EXPECT_GT(memory(more), memory(l));
}

// Frozen weights have no gradient and no states, and lie in the compute precision; ZeRO-3 shards and gathers them like
// others.
TEST(Memory, CountsFrozenWeights) {
  Workload w = transformer(12, 1024, 512, 32000);
  Cluster c = cluster(1, 4, "A100-80GB");
  Layout l;
  l.tensor = 2, l.data = 2;
  Workload frozen = w;
  frozen.kinds[1].frozen = {1e8, 3e7};
  CostModel of_trained(problem(w, c, 8)), of_frozen(problem(frozen, c, 8));
  auto predicted = [&](CostModel& model, int zero) {
    l.zero = zero;
    return model.predict(l, false);
  };
  constexpr double kStored = 12 * 8e7 * 2;  // bf16
  Prediction without = predicted(of_trained, 2), with = predicted(of_frozen, 2);
  EXPECT_DOUBLE_EQ(with.memory[0].parameters - without.memory[0].parameters, kStored);
  EXPECT_DOUBLE_EQ(with.memory[0].transient, without.memory[0].transient);
  EXPECT_DOUBLE_EQ(with.step_seconds, without.step_seconds);
  without = predicted(of_trained, 3), with = predicted(of_frozen, 3);
  EXPECT_DOUBLE_EQ(with.memory[0].parameters - without.memory[0].parameters, kStored / 2);
  EXPECT_GT(with.memory[0].transient - without.memory[0].transient, 8e7 * 2);
  EXPECT_GT(with.breakdown.gathers, without.breakdown.gathers);
  EXPECT_DOUBLE_EQ(with.memory[0].gradients, without.memory[0].gradients);
  l.offload = OffloadMode::kAll;
  EXPECT_EQ(predicted(of_frozen, 3).memory[0].parameters, 0);
}

// Of what is kept and moved, an RMS norm that is run as a chain adds its own bytes, and a split vocabulary all logits.
TEST(Memory, CountsWhatEagerSoftwareKeeps) {
  Workload w = transformer(4, 2048, 1024, 32000);
  Cluster c = cluster(1, 2, "A100-80GB");
  DeviceProfile& d = c.groups[0].device;
  d.software.composed_saved_bytes = 1.5, d.software.gathered_logit_bytes = 20, d.software.logit_bytes = 2;
  d.software.fragmentation = 0;
  Problem p = problem(w, c, 8);
  Layout l;
  l.data = 2;
  double plain = saved_bytes(w.kinds[1], p, d, l, false);
  w.kinds[1].composed = {0, 2.0 * 1024 * 2048};
  EXPECT_DOUBLE_EQ(saved_bytes(w.kinds[1], p, d, l, false), plain + 1.5 * 2 * 1024 * 2048);
  StageUnits last{{0, 0, 1}, 1};
  EXPECT_DOUBLE_EQ(stage_memory(p, d, l, last, 1).transient, 2.0 * 1024 * 32000);
  l.data = 1, l.tensor = 2;
  EXPECT_DOUBLE_EQ(stage_memory(p, d, l, last, 1).transient, 20.0 * 1024 * 32000);
}

// The reserve has room for three communicators; those beyond take 32 channels of 10 and 2 MiB.
TEST(Memory, CountsCommunicatorsBeyondTheReserve) {
  Workload w = transformer(4, 2048, 1024, 32000);
  Cluster c = cluster(1, 2, "A100-80GB");
  Problem p = problem(w, c, 8);
  const auto more = [&](const Layout& l) {
    return stage_memory(p, c.groups[0].device, l, {{0, 0, 1}, 1}, 1).communicators / (32 << 20);
  };
  Layout l;
  EXPECT_EQ(more(l), 0);
  l.data = 4, l.tensor = 2;
  EXPECT_EQ(communicators(l).groups, 2);
  EXPECT_EQ(more(l), 0);
  l.pipeline = 2;
  EXPECT_EQ(more(l), 0);  // as much as a third group
  l.pipeline = 4;
  EXPECT_EQ(communicators(l).sends, 2);
  EXPECT_DOUBLE_EQ(more(l), 10 + 2);
  l.context = 2;  // its own group, and one for the gradients
  EXPECT_DOUBLE_EQ(more(l), 2 * (10 + 2));
  l.context = 1, l.expert = 2, l.zero_group = 4;  // all samples, an expert's, and two levels
  EXPECT_EQ(communicators(l).groups, 5);
}

// Attention over a context axis is exchanged from positions to heads and back: queries, keys, values and the result,
// and their gradients. Keys and values have the heads that they have.
TEST(Predict, ContextAxisExchangesAttention) {
  const double d = 1024, s = 4096;
  Workload w = transformer(4, d, s, 8192);
  Cluster c = cluster(1, 8, "A100-80GB");
  Problem p = problem(w, c, 8);
  Layout l;
  l.context = 4, l.data = 2, l.micro_batch = 2;
  double micro = 2, blocks = 4;
  auto exchange = [&](double width) {
    return collective_time(c.groups[0], CollectiveKind::kAllToAll, {4, 1}, width * s / 4 * 2 * 2).seconds;
  };
  EXPECT_NEAR(CostModel(p).predict(l, false).breakdown.context, micro * blocks * 8 * exchange(d), 1e-9);
  for (UnitWork& u : w.kinds) {
    for (AttentionWork& a : u.attention) a.key_heads = a.heads / 4;
  }
  EXPECT_NEAR(CostModel(p).predict(l, false).breakdown.context, micro * blocks * 4 * (exchange(d) + exchange(d / 4)),
              1e-9);
}

// A micro-batch's gradients are added where they are stored: with ZeRO-2 and 3, to a rank's own part.
TEST(Predict, ShardedGradientsAreAddedInParts) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(4, 8, "A100-80GB");
  double& bytes = c.groups[0].device.software.accumulate_bytes;
  Problem p = problem(w, c, 64);
  Layout l;
  l.data = 32;
  auto cost = [&](int zero) {
    l.zero = zero;
    auto step = [&](double b) { return bytes = b, CostModel(p).predict(l, false).step_seconds; };
    return step(8) - step(0);
  };
  EXPECT_NEAR(cost(1), cost(0), 1e-3 * cost(0));
  EXPECT_LT(cost(2), 0.25 * cost(1));
  EXPECT_GT(cost(3), 0);
}

// What layout changes make is written and read where software copies it, divided as the values are.
TEST(Predict, CopiedLayoutsMoveTheirBytes) {
  const double d = 1024, s = 2048, many = 1e4;
  Workload w = transformer(1, d, s, 8192);
  UnitWork& block = w.kinds[1];
  block.copied = {many * s * d, 0};
  Cluster c = cluster(1, 2, "A100-80GB");
  DeviceProfile& device = c.groups[0].device;
  ComputeOptions options{.precision = Precision::kBf16};
  auto added = [&](double tensor) {
    Share share;
    share.tensor = tensor;
    device.software.copies = 0;
    double before = unit_time(block, w, device, options, share).forward;
    device.software.copies = 1;
    return unit_time(block, w, device, options, share).forward - before;
  };
  double seconds = 2 * 2 * many * s * d * device.software.memory_traffic / (device.bandwidth * device.memory.at(1e12));
  EXPECT_NEAR(added(1), seconds, 0.01 * seconds);
  EXPECT_NEAR(added(2), seconds / 2, 0.01 * seconds);
}

// What a framework does on the host for each block that it recomputes, it does for every micro-batch.
TEST(Predict, RecomputedBlocksCostTheHost) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(1, 1, "A100-80GB");
  double& host = c.groups[0].device.software.recompute_seconds;
  Problem p = problem(w, c, 8);
  Layout l;
  auto step = [&](RecomputeMode mode, double seconds) {
    host = seconds, l.recompute = mode;
    return CostModel(p).predict(l, false).step_seconds;
  };
  EXPECT_EQ(step(RecomputeMode::kNone, 1e-3), step(RecomputeMode::kNone, 0));
  EXPECT_NEAR(step(RecomputeMode::kFull, 1e-3) - step(RecomputeMode::kFull, 0), 8 * 4 * 1e-3, 1e-9);
}

// Software that exchanges states in pieces pays the ring's latency for each of them.
TEST(Predict, PiecesOfShardedStates) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(4, 8, "A100-80GB");
  SoftwareProfile& software = c.groups[0].device.software;
  software.overlap_data = software.overlap_gather = software.overlap_slowdown = software.straggler_per_doubling = 0;
  Problem p = problem(w, c, 32);
  Layout l;
  l.data = 32;
  auto step = [&](int zero, double shard, double gather) {
    software.shard_message_bytes = shard, software.gather_message_bytes = gather;
    l.zero = zero;
    return CostModel(p).predict(l, false).step_seconds;
  };
  double hops = ring_latency(c.groups[0], {32, 1}), parameters = 0;
  for (int k : w.units) parameters += w.kinds[static_cast<size_t>(k)].parameters[0] + w.unit(0).parameters[1];
  for (int zero : {0, 1, 2, 3}) {
    double whole = step(zero, 0, 0);
    EXPECT_EQ(step(zero, 1e4, 0) > whole, zero == 1) << zero;
    EXPECT_EQ(step(zero, 0, 1e4) > whole, zero >= 2) << zero;
  }
  // Gradients are scattered and parameters gathered, 16 bits each, in pieces of 10 kB.
  EXPECT_NEAR(step(1, 1e4, 0) - step(1, 0, 0), 2 * 2 * parameters / 1e4 * hops, 0.01 * 2 * 2 * parameters / 1e4 * hops);
}

TEST(Predict, SeveralMicroBatchesAddTheirGradients) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(1, 1, "A100-80GB");
  SoftwareProfile& software = c.groups[0].device.software;
  auto step = [&](int64_t batch, double bytes) {
    software.accumulate_bytes = bytes;
    return CostModel(problem(w, c, batch)).predict({}, false).step_seconds;
  };
  EXPECT_DOUBLE_EQ(step(1, 8), step(1, 0));
  double each = memory_time(c.groups[0].device, 8 * w.parameters, 0);
  EXPECT_NEAR(step(4, 8) - step(4, 0), 4 * each, 0.02 * each);
}

// Attention that keeps its scores: heads whose rows are no whole 16 bytes, and more keys than a fused softmax takes.
TEST(Predict, AttentionThatKernelsDoNotFit) {
  Workload w = transformer(2, 1024, 2048, 8192);
  DeviceProfile d = cluster(1, 1, "A100-80GB").groups[0].device;
  ComputeOptions options{Precision::kBf16, false};
  auto forward = [&] { return unit_time(w.kinds[1], w, d, options, {}).forward; };
  d.misaligned = 0.1;
  double aligned = forward();
  w.kinds[1].attention[0].head_size = 68;
  EXPECT_GT(forward(), aligned);
  w.kinds[1].attention[0].head_size = 64;
  d.software.unfused_score_traffic = 2 * d.software.math_score_traffic;
  d.software.fused_softmax_keys = 2048;
  EXPECT_DOUBLE_EQ(forward(), aligned);
  d.software.fused_softmax_keys = 2047;
  EXPECT_GT(forward(), aligned);
  options.flash = true;
  double flash = forward();
  d.software.fused_softmax_keys = 0;
  EXPECT_DOUBLE_EQ(forward(), flash);
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
