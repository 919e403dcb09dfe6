#include "partitioner/layout/balance_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "ir/graph/builder.h"
#include "partitioner/stages/assign_stages.h"

namespace partita {
namespace {

double slowest(const std::vector<CutPiece>& pieces, const std::vector<int>& stage, int stages) {
  std::vector<double> sum(static_cast<size_t>(stages), 0);
  for (size_t k = 0; k < pieces.size(); ++k) {
    sum[static_cast<size_t>(stage[k])] += pieces[k].work;
    if (k > 0 && stage[k] != stage[k - 1]) sum[static_cast<size_t>(stage[k])] += pieces[k].crossing;
  }
  return *std::max_element(sum.begin(), sum.end());
}

// The best over all ways to cut, by trying them all.
double best(const std::vector<CutPiece>& pieces, int stages) {
  double least = 1e300;
  std::vector<int> cut(pieces.size(), 0);  // 1: a new stage begins here
  std::fill(cut.end() - (stages - 1), cut.end(), 1);
  do {
    if (cut[0] != 0) continue;
    std::vector<int> stage(pieces.size(), 0);
    for (size_t k = 1; k < stage.size(); ++k) stage[k] = stage[k - 1] + cut[k];
    least = std::min(least, slowest(pieces, stage, stages));
  } while (std::next_permutation(cut.begin(), cut.end()));
  return least;
}

TEST(StageCuts_RandomChains, AreAsGoodAsTheBest) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<CutPiece> pieces(2 + rng() % 9);
    for (CutPiece& p : pieces) p = {static_cast<double>(rng() % 20), static_cast<double>(rng() % 8)};
    int stages = 1 + static_cast<int>(rng() % pieces.size());
    std::vector<int> stage = balanced_stages(pieces, stages);
    EXPECT_EQ(stage.front(), 0);
    EXPECT_EQ(stage.back(), stages - 1);
    for (size_t k = 1; k < stage.size(); ++k) EXPECT_TRUE(stage[k] == stage[k - 1] || stage[k] == stage[k - 1] + 1);
    EXPECT_DOUBLE_EQ(slowest(pieces, stage, stages), best(pieces, stages));
  }
}

TEST(StageCuts_EqualWork, CutsWhereLeastCrosses) {
  std::vector<CutPiece> pieces = {{4, 0}, {0, 9}, {0, 1}, {4, 9}};
  EXPECT_EQ(balanced_stages(pieces, 2), (std::vector<int>{0, 0, 1, 1}));
}

// Importers write what running statistics become behind the whole model. Each is its norm's stage's all the same, in
// training and where evaluation has it as a table that another stage reads too.
TEST(StageCuts_RunningStatistics, StayWithTheirNorm) {
  for (const bool training : {true, false}) {
    Builder b;
    const auto state = [&](const std::string& name, StateKind kind, Shape shape) {
      return b.state({.name = name, .kind = kind, .parameter = {}, .initial = {}}, {DType::kF32, std::move(shape)});
    };
    ValueId x = b.input("x", {DType::kF32, {8, 4}});
    std::vector<ValueId> running, batch;
    for (const std::string k : {"0", "1"}) {
      running.push_back(state("mean" + k, training ? StateKind::kRunning : StateKind::kFrozen, {4}));
      x = b.matmul(x, state("w" + k, StateKind::kParameter, {4, 4}));
      const ValueId scale = state("scale" + k, StateKind::kParameter, {4});
      if (training) {
        const auto norm =
            b.emit_all("batch_norm", {x, scale, state("bias" + k, StateKind::kParameter, {4})}, {{"epsilon", 1e-3}});
        x = norm[0];
        batch.push_back(norm[1]);
      } else {
        x = b.mul(b.sub(x, running[0]), scale);
      }
    }
    b.output("loss", b.mean(b.mul(x, x), {0, 1}, false));
    for (size_t k = 0; k < batch.size(); ++k)
      b.set_next(k == 0 ? "mean0" : "mean1", b.add(b.scale(running[k], 0.9), b.scale(batch[k], 0.1)));
    const StateOwners owners = {{"mean0", 0}, {"mean1", 1}, {"w0", 0}, {"w1", 1}, {"scale0", 0}, {"scale1", 1}};
    const Graph graph = std::move(b).finish();
    const auto stages = training ? assign_stages(graph, 2, {}, {"w1"}) : assign_stages(graph, 2, owners);
    ASSERT_TRUE(stages.ok()) << stages.status();
    for (size_t k = 0; k < graph.states.size(); ++k)
      EXPECT_EQ(stages->state[k], graph.states[k].name.back() - '0') << graph.states[k].name << " " << training;
  }
}

}  // namespace
}  // namespace partita
