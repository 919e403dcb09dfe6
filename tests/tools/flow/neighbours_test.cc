// Layouts that differ from the one that the search found in a single choice: on random models and clusters, none is
// much faster. A longer campaign: PARTITA_ROUNDS=200 PARTITA_SEED=2 tools_test --gtest_filter=Neighbours*
// With PARTITA_CHANGES=2 some that differ in two choices are tried as well.
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

  std::vector<Layout> all(bool positions) {
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
    for (int eighths = 0; eighths <= 8; ++eighths)
      with([eighths](Layout& l) {
        l.offload = eighths > 0 ? OffloadMode::kOptimizer : OffloadMode::kNone;
        l.offload_fraction = eighths > 0 ? eighths / 8. : 1;
      });
    for (auto schedule : {PipelineSchedule::k1f1b, PipelineSchedule::kZeroBubble})
      with([schedule](Layout& l) { l.schedule = schedule, l.interleave = 1, l.cuts.clear(); });
    for (size_t k = 0; k + 1 < of_.cuts.size(); ++k)
      for (int units : {-1, 1}) with([k, units](Layout& l) { l.cuts[k] += units, l.cuts[k + 1] -= units; });
    std::vector<int64_t Layout::*> axes = {&Layout::data, &Layout::tensor, &Layout::pipeline, &Layout::expert};
    if (positions) axes.push_back(&Layout::context);
    for (auto from : axes)
      for (auto to : axes)
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

struct Asked {
  std::string model, training;
};

template <typename Pick>
Asked random_model(Pick pick) {
  const int64_t family = pick({0, 0, 0, 1, 2, 3, 4, 5}), hidden = pick({1024, 2048, 4096, 8192});
  const std::string blocks = cat(" --layers ", pick({4, 8, 16, 32}), " --hidden ", hidden, " --heads ", hidden / 128);
  const std::string text = cat(blocks, " --vocab 32000 --seq ", pick({1024, 2048, 4096, 8192}));
  const std::string llama = text + " --gated-mlp --no-bias --no-tied --norm rmsnorm --positions rotary";
  const std::string images = "loss: {kind: cross_entropy, output: logits, target: target}\n";
  switch (family) {
    case 1:
      return {cat("moe", text, " --experts ", pick({4, 8, 64}), " --top-k 2"), "precision: bf16\n"};
    case 2:
      return {"bert" + text, "precision: fp16\n"};
    case 3:
      return {"vit" + blocks + " --patch 16 --image 224", images + "precision: bf16\n"};
    case 4:
      return {cat("resnet --depth ", pick({18, 50})), images};
    case 5:
      return {"gpt" + llama, "precision: bf16\nfrozen: [\"*mlp*\"]\n"};
    default:
      return {"gpt" + llama, "precision: bf16\n"};
  }
}

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

// All that differ from it in one choice; with PARTITA_CHANGES=2 some that differ in two.
std::vector<Layout> around(const Problem& problem, const Layout& of, std::mt19937& rng) {
  const bool positions = problem.workload->sequence > 1;
  std::vector<Layout> near = Neighbourhood(of).all(positions);
  if (from_environment("PARTITA_CHANGES", 1) < 2) return near;
  for (size_t k = 0, once = near.size(); k < once; ++k) {
    if (rng() % 4 != 0 || !invalid(problem, near[k]).empty()) continue;
    const Layout first = near[k];
    for (Layout& l : Neighbourhood(first).all(positions)) {
      if (rng() % 3 == 0) near.push_back(std::move(l));
    }
  }
  return near;
}

// The model that `partita model` writes, on a cluster, with a global batch.
absl::StatusOr<std::unique_ptr<Planning>> planning_of(const TempFolder& folder, const Asked& asked,
                                                      const std::string& cluster, int64_t batch) {
  const Outcome made = run_partita("model " + asked.model + " --quiet -o " + (folder / "model.onnx"));
  if (made.code != 0) return absl::InternalError(made.text);
  PlanRequest request;
  request.model = folder / "model.onnx", request.cluster_file = "cluster.yaml", request.cluster = cluster;
  request.train_file = folder.write("train.yaml", "optimizer: {kind: adamw, lr: 1.0e-4}\n" + asked.training);
  request.sets = {cat("batch.global=", batch)};
  return prepare_plan(request);
}

// Programs are not allocated: the plan and its neighbours are to be judged by one measure.
absl::StatusOr<SearchResult> search_by_count(CostModel& cost, SearchOptions options) {
  options.allocate = nullptr;
  return search(cost, options);
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
    const int64_t nodes = pick({1, 2, 4, 8}), each = pick({1, 2, 4, 8});
    const Asked asked = random_model(pick);
    const bool fast = pick({0, 1}) == 1;
    const std::string links = fast ? cat("{kind: nvlink3, group: ", each, "}, {kind: infiniband, bandwidth: 25.0e+9}")
                                   : cat("{kind: pcie, group: ", each, "}, {kind: infiniband, bandwidth: 6.0e+9}");
    const std::string cluster =
        cat("nodes: ", nodes, "\ndevices_per_node: ", each,
            "\ndevice: {like: H100-80GB, memory: ", pick({12, 16, 24, 40, 80}), ".0e9}\nlinks: [", links, "]\n");
    const int64_t batch = nodes * each * pick({1, 4, 32});
    const auto planning = planning_of(folder, asked, cluster, batch);
    ASSERT_TRUE(planning.ok()) << planning.status();
    const Problem& problem = (*planning)->problem;
    CostModel cost(problem);
    const auto found = search_by_count(cost, (*planning)->options);
    ASSERT_TRUE(found.ok()) << found.status();
    if (!found->best) continue;
    const Layout& mine = found->best->layout;
    const double seconds = cost.predict(mine, true).step_seconds;
    Layout other;
    const double theirs = fastest(cost, problem, around(problem, mine, rng), other);
    const double gain = std::max(0., 1 - theirs / seconds);
    EXPECT_LT(gain, 0.05) << round << ": " << asked.model << ", batch " << batch << "\n"
                          << cluster << describe(mine) << " takes " << seconds << " s, " << describe(other) << " "
                          << theirs;
    lost += gain, ++judged;
  }
  ASSERT_GT(judged, rounds / 2);
  EXPECT_LT(lost / static_cast<double>(judged), 0.005);
  std::printf("a neighbour is faster by %.2f %% on average of %lld problems\n",
              100 * lost / static_cast<double>(judged), static_cast<long long>(judged));
}

// Blocks that a program computes again, or leaves on the host, to have the memory in which micro-batches take turns.
TEST(Neighbours, TurnsAreWorthBlocksOnTheHost) {
  const TempFolder folder;
  const Asked asked{
      "gpt --layers 8 --hidden 8192 --heads 64 --vocab 32000 --seq 4096 --gated-mlp --no-bias --no-tied "
      "--norm rmsnorm --positions rotary",
      "precision: bf16\nfrozen: [\"*mlp*\"]\n"};
  const auto planning = planning_of(
      folder, asked, "devices_per_node: 2\ndevice: {like: H100-80GB, memory: 24.0e9}\nlinks: [{kind: pcie}]\n", 64);
  ASSERT_TRUE(planning.ok()) << planning.status();
  CostModel cost((*planning)->problem);
  const auto found = search_by_count(cost, (*planning)->options);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  EXPECT_EQ(found->best->layout.overlapped(), 2) << describe(found->best->layout);
  EXPECT_FALSE(found->best->layout.recompute_blocks.empty());
}

// Each layer of a ResNet is a unit of its own time: stages that are cut a unit beside the balanced ones are faster
// where these have the slowest sends.
TEST(Neighbours, StagesAreCutBesideTheBalance) {
  const TempFolder folder;
  const Asked asked{"resnet --depth 50", "loss: {kind: cross_entropy, output: logits, target: target}\n"};
  const auto planning = planning_of(folder, asked,
                                    "nodes: 4\ndevices_per_node: 1\ndevice: {like: H100-80GB}\n"
                                    "links: [{kind: nvlink3, group: 1}, {kind: infiniband, bandwidth: 25.0e+9}]\n",
                                    16);
  ASSERT_TRUE(planning.ok()) << planning.status();
  CostModel cost((*planning)->problem);
  const auto found = search_by_count(cost, (*planning)->options);
  ASSERT_TRUE(found.ok() && found->best) << found.status();
  Layout balanced = found->best->layout;
  ASSERT_GT(balanced.pipeline, 1);
  balanced.cuts = cost.balanced_cuts(balanced);
  EXPECT_LT(found->best->prediction.step_seconds, 0.9 * cost.predict(balanced, true).step_seconds);
}

}  // namespace
}  // namespace partita
