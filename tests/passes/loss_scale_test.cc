// The scale over many steps against a plain loop, and what a step that overflows leaves as it was.
#include "passes/loss_scale.h"

#include <limits>

#include "tests/passes/spelling.h"

namespace partita {
namespace {

// A parameter w that becomes w + 1, and what becomes of every state when `finite` says so.
struct Update {
  Graph graph;
  ValueId finite;
  std::map<std::string, Tensor> now;

  Update() {
    Builder b;
    b.context().segment = Segment::kUpdate;
    finite = b.input("finite", {DType::kBool, {}});
    ValueId w =
        b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, {DType::kF32, {2}});
    b.set_next("w", b.add_scalar(w, 1));
    hold_and_rescale(b, finite);
    for (const State& s : b.graph().states) {
      b.output(s.name, s.next);
      now[s.name] = Tensor::zeros(b.type(s.value));
      if (const auto* rule = std::get_if<InitialRule>(&s.initial)) {
        for (double& x : now[s.name].f) x = rule->a;
        for (int64_t& x : now[s.name].i) x = static_cast<int64_t>(rule->a);
      }
    }
    graph = std::move(b).finish();
  }

  void step(bool good) {
    std::map<ValueId, Tensor> feeds;
    feeds[finite] = Tensor::zeros({DType::kBool, {}});
    feeds[finite].i[0] = good;
    for (const State& s : graph.states) feeds[s.value] = now.at(s.name);
    std::vector<Tensor> next = evaluate_graph(graph, feeds);
    for (size_t k = 0; k < graph.outputs.size(); ++k) now[graph.outputs[k].name] = next[k];
  }
  double scale() const { return now.at("loss_scale").f[0]; }
};

// Megatron's DynamicGradScaler with growth 2, backoff 0.5, interval 1000, hysteresis 2, least 1.
struct Reference {
  double scale = 65536;
  int run = 0, left = 2;

  void step(bool good) {
    if (!good) {
      run = 0;
      if (--left <= 0) scale = std::max(scale / 2, 1.0);
    } else if (++run == 1000) {
      run = 0;
      left = 2;
      scale *= 2;
    }
  }
};

TEST(LossScale_ManySteps, FollowsTheReference) {
  Update update;
  Reference reference;
  auto both = [&](bool good) {
    update.step(good);
    reference.step(good);
    ASSERT_EQ(update.scale(), reference.scale);
  };
  for (int k = 0; k < 2100; ++k) both(true);
  EXPECT_EQ(update.scale(), 4 * 65536);
  both(false);
  EXPECT_EQ(update.scale(), 4 * 65536);  // forgiven
  for (int k = 0; k < 30; ++k) both(k == 20);
  EXPECT_EQ(update.scale(), 1);
  for (int k = 0; k < 999; ++k) both(true);
  EXPECT_EQ(update.scale(), 1);
  both(true);
  EXPECT_EQ(update.scale(), 2);
  std::mt19937 random(3);
  for (int k = 0; k < 3000; ++k) both(random() % 700 != 0);
}

TEST(LossScale_Overflow, LeavesTheParameterAsItWas) {
  Update update;
  update.step(true);
  EXPECT_EQ(update.now.at("w").f[0], 1);
  update.step(false);
  EXPECT_EQ(update.now.at("w").f[0], 1);
  update.step(true);
  EXPECT_EQ(update.now.at("w").f[0], 2);
}

}  // namespace
}  // namespace partita
