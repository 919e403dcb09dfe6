// Layouts that differ from the one that the search found in a single choice: on random models and clusters, none is
// much faster. A longer campaign: PARTITA_ROUNDS=200 PARTITA_SEED=2 tools_test --gtest_filter=Neighbours*
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/cat.h"
#include "partitioner/planner/space/layout_space.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/flow/plan.h"

namespace partita {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* said = std::getenv(name);
  return said == nullptr ? otherwise : std::atoll(said);
}

class Neighbourhood {
 public:
  explicit Neighbourhood(const Layout& of) : of_(of) {}

  std::vector<Layout> all() {
    for (int64_t m : {of_.micro_batch / 2, of_.micro_batch * 2, of_.micro_batch - 1, of_.micro_batch + 1})
      if (m > 0) with([m](Layout& l) { l.micro_batch = m; });
    for (int zero : {0, 1, 2, 3}) with([zero](Layout& l) { l.zero = zero; });
    for (int64_t ranks = 2; ranks < of_.sample_ranks(); ranks *= 2) with([ranks](Layout& l) { l.zero_group = ranks; });
    for (int64_t blocks : {0, 1, 2, 4}) with([blocks](Layout& l) { l.prefetch_blocks = blocks; });
    for (int64_t parts : {1, 2, 4}) {
      with([parts](Layout& l) { l.overlap_micro_batches = parts; });
      with([parts](Layout& l) { l.overlap_products = parts; });
    }
    with([](Layout& l) { l.sequence_parallel = !l.sequence_parallel; });
    for (double part : {0., 0.25, 0.5, 0.75, 1.})
      with([part](Layout& l) {
        l.offload = part > 0 ? OffloadMode::kOptimizer : OffloadMode::kNone, l.offload_fraction = part > 0 ? part : 1;
      });
    for (auto schedule : {PipelineSchedule::k1f1b, PipelineSchedule::kZeroBubble})
      with([schedule](Layout& l) { l.schedule = schedule, l.interleave = 1, l.cuts.clear(); });
    for (size_t k = 0; k + 1 < of_.cuts.size(); ++k)
      for (int units : {-1, 1}) with([k, units](Layout& l) { l.cuts[k] += units, l.cuts[k + 1] -= units; });
    constexpr int64_t Layout::*kAxes[] = {&Layout::data, &Layout::tensor, &Layout::pipeline, &Layout::context};
    for (auto from : kAxes)
      for (auto to : kAxes)
        if (from != to && of_.*from % 2 == 0) with([&](Layout& l) { move(l, from, to); });
    for (size_t mode = static_cast<size_t>(RecomputeMode::kNone); mode < kRecomputeModes; ++mode)
      with([mode](Layout& l) { l.recompute = static_cast<RecomputeMode>(mode), l.recompute_blocks.clear(); });
    return std::move(all_);
  }

 private:
  template <typename Change>
  void with(Change change) {
    Layout l = of_;
    change(l);
    l.cut_names.clear(), l.buckets = {};
    if (std::all_of(l.cuts.begin(), l.cuts.end(), [](int units) { return units > 0; })) all_.push_back(std::move(l));
  }

  // Half as long an axis, and another one twice as long.
  static void move(Layout& l, int64_t Layout::*from, int64_t Layout::*to) {
    l.*from /= 2, l.*to *= 2, l.cuts.clear();
    if (l.pipeline == 1) l.schedule = PipelineSchedule::k1f1b, l.interleave = 1;
    if (l.tensor == 1) l.sequence_parallel = false, l.overlap_products.reset();
    if (l.zero_group >= l.sample_ranks()) l.zero_group = 0;
  }

  const Layout& of_;
  std::vector<Layout> all_;
};

// The fastest of these that fits, with blocks computed again where that is what lets it; kept in `best`.
double fastest(CostModel& model, const Problem& problem, const std::vector<Layout>& layouts, Layout& best) {
  double least = 1e300;
  for (const Layout& l : layouts) {
    if (!invalid(problem, l).empty()) continue;
    std::vector<Layout> tried = {l};
    Layout open = l;
    open.recompute = RecomputeMode::kNone, open.recompute_blocks.clear();
    if (auto again = model.with_recompute(open, 0)) tried.push_back(*std::move(again));
    for (const Layout& t : tried) {
      const Layout whole = model.with_exchanges(t);
      const Prediction quick = model.predict(whole, false);
      if (!quick.fits || quick.step_seconds > 1.05 * least) continue;
      const Prediction exact = model.predict(whole, true);
      if (exact.fits && exact.step_seconds < least) least = exact.step_seconds, best = whole;
    }
  }
  return least;
}

TEST(Neighbours, AreNotMuchFaster) {
  const int64_t rounds = from_environment("PARTITA_ROUNDS", 8), seed = from_environment("PARTITA_SEED", 1);
  const TempFolder folder;
  double lost = 0;
  int64_t judged = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    std::mt19937 rng(static_cast<unsigned>(seed * 1000 + round));
    auto pick = [&](std::initializer_list<int64_t> of) {
      return *(of.begin() + static_cast<int64_t>(rng() % of.size()));
    };
    const int64_t hidden = pick({1024, 2048, 4096, 8192}), nodes = pick({1, 2, 4, 8}), each = pick({1, 2, 4, 8});
    const std::string model = cat("gpt --layers ", pick({4, 8, 16, 32}), " --hidden ", hidden, " --heads ",
                                  hidden / 128, " --vocab 32000 --seq ", pick({1024, 2048, 4096, 8192}),
                                  " --gated-mlp --no-bias --no-tied --norm rmsnorm --positions rotary");
    const Outcome made = run_partita("model " + model + " --quiet -o " + (folder / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    const bool fast = pick({0, 1}) == 1;
    const std::string links = fast ? cat("{kind: nvlink3, group: ", each, "}, {kind: infiniband, bandwidth: 25.0e+9}")
                                   : cat("{kind: pcie, group: ", each, "}, {kind: infiniband, bandwidth: 6.0e+9}");
    PlanRequest request;
    request.model = folder / "model.onnx", request.cluster_file = "cluster.yaml";
    request.train_file = folder.write("train.yaml", "optimizer: {kind: adamw, lr: 1.0e-4}\nprecision: bf16\n");
    request.cluster =
        cat("nodes: ", nodes, "\ndevices_per_node: ", each,
            "\ndevice: {like: H100-80GB, memory: ", pick({12, 16, 24, 40, 80}), ".0e9}\nlinks: [", links, "]\n");
    request.sets = {cat("batch.global=", nodes * each * pick({1, 4, 32}))};
    const auto planning = prepare_plan(request);
    ASSERT_TRUE(planning.ok()) << planning.status();
    const Problem& problem = (*planning)->problem;
    SearchOptions options = (*planning)->options;
    options.allocate = nullptr;  // what counts here is one measure for both
    CostModel cost(problem);
    const auto found = search(cost, options);
    ASSERT_TRUE(found.ok()) << found.status();
    if (!found->best) continue;
    const Layout& mine = found->best->layout;
    const double seconds = cost.predict(mine, true).step_seconds;
    Layout other;
    const double theirs = fastest(cost, problem, Neighbourhood(mine).all(), other);
    const double gain = std::max(0., 1 - theirs / seconds);
    EXPECT_LT(gain, 0.1) << round << ": " << model << ", " << request.sets[0] << "\n"
                         << request.cluster << describe(mine) << " takes " << seconds << " s, " << describe(other)
                         << " " << theirs;
    lost += gain, ++judged;
  }
  ASSERT_GT(judged, rounds / 2);
  EXPECT_LT(lost / static_cast<double>(judged), 0.01);
  std::printf("a neighbour is faster by %.2f %% on average of %lld problems\n",
              100 * lost / static_cast<double>(judged), static_cast<long long>(judged));
}

}  // namespace
}  // namespace partita
