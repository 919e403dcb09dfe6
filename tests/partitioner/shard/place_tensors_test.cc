// Of the optimizer's states, the part that a layout leaves to the host.
#include "partitioner/shard/place_tensors.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "passes/forward/attach_loss.h"
#include "passes/training/build_backward.h"
#include "passes/training/build_optimizer.h"

namespace partita {
namespace {

constexpr int64_t kRows = 8;

// Matrices one behind the other, of any sizes, declared in an order of their own.
Graph training_graph(std::mt19937& rng) {
  Builder g;
  std::vector<int64_t> widths(2 + rng() % 20);
  for (int64_t& w : widths) w = 8 * (1 + static_cast<int64_t>(rng() % 16));
  std::vector<size_t> order(widths.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, rng);
  std::vector<ValueId> weights(order.size());
  for (size_t k : order)
    weights[k] = g.state({.name = cat("w", k), .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                         {DType::kF32, {widths[k], widths[k + 1]}});
  ValueId x = g.input("x", {DType::kF32, {kRows, widths[0]}});
  for (ValueId w : weights) x = g.matmul(x, w);
  g.output("y", x);
  PassContext context;
  context.recipe.loss = {LossRecipe{.kind = LossKind::kMse, .output = "y"}};
  context.recipe.optimizer = default_optimizer(OptimizerKind::kAdamW);
  Graph graph = *attach_loss(std::move(g).finish(), context);
  return *build_optimizer(*build_backward(graph, context), context);
}

struct OnRank {
  double all = 0, host = 0;  // bytes
};

// A rank's states of each parameter. Parameters themselves lie on the device.
std::map<std::string, OnRank> states_of(const PlannedGraph& planned) {
  std::map<std::string, OnRank> out;
  for (size_t k = 0; k < planned.graph.states.size(); ++k) {
    const State& s = planned.graph.states[k];
    const std::optional<StateLayout>& at = planned.plan.states[k];
    if (s.kind != StateKind::kOptimizer || s.parameter.empty()) {
      EXPECT_FALSE(at && at->host) << s.name;
      continue;
    }
    const TensorType type = {planned.graph.type(s.value).dtype, local_shape(at->stored, planned.plan.mesh)};
    const double bytes = static_cast<double>(byte_size(type));
    out[s.parameter].all += bytes;
    if (at->host) out[s.parameter].host += bytes;
  }
  return out;
}

TEST(PlaceTensors, TheHostHasItsPartOfAnyConsecutiveLayers) {
  std::mt19937 rng(3);
  int some = 0;
  for (int round = 0; round < 60; ++round) {
    const Graph graph = training_graph(rng);
    Layout l;
    l.data = 2, l.tensor = 1 + static_cast<int64_t>(rng() % 2), l.zero = static_cast<int>(rng() % 4);
    l.offload = OffloadMode::kOptimizer;
    l.offload_fraction = std::uniform_real_distribution<>(0.02, 1)(rng);
    Recipe recipe;
    recipe.batch.global = 2 * kRows;
    const auto batch = plan_batch(graph, recipe, l);
    ASSERT_TRUE(batch.ok()) << batch.status();
    std::vector<std::string> warnings;
    const auto planned = plan_shardings(graph, recipe, l, *batch, warnings);
    ASSERT_TRUE(planned.ok()) << planned.status();
    const std::map<std::string, OnRank> states = states_of(*planned);
    double largest = 0;
    for (const auto& [name, s] : states) {
      EXPECT_TRUE(s.host == 0 || s.host == s.all) << name << " lies on both";
      largest = std::max(largest, s.all);
      some += s.host > 0;
    }
    const size_t n = states.size();
    for (size_t first = 0; first < n; ++first) {
      OnRank run;
      for (size_t k = first; k < n; ++k) {
        const OnRank& s = states.at(cat("w", k));
        run.all += s.all, run.host += s.host;
        EXPECT_LE(std::abs(run.host - l.offload_fraction * run.all), largest) << first << " to " << k;
        // What is counted as left on the device is no less than what is there.
        if (first == 0) {
          EXPECT_GE(run.host, l.offload_fraction * run.all - 1e-6) << k;
        }
      }
    }
    ASSERT_FALSE(HasFailure()) << round << " " << describe(l);
  }
  EXPECT_GT(some, 60);
}

}  // namespace
}  // namespace partita
