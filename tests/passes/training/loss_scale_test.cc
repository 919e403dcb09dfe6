// The scale over many steps against a plain loop, and what a step that overflows leaves as it was.
#include "passes/training/loss_scale.h"

#include <limits>

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

// A parameter w that becomes w + 1, and what becomes of every state when `finite` says so.
struct Update {
  Graph graph;
  ValueId finite;
  std::map<std::string, Tensor> now;

  explicit Update(const LossScaleRecipe& recipe = {}) {
    Builder b;
    b.context().segment = Segment::kUpdate;
    finite = b.input("finite", {DType::kBool, {}});
    ValueId w =
        b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, {DType::kF32, {2}});
    b.set_next("w", b.add_scalar(w, 1));
    loss_scale(b, recipe);
    hold_states(b, finite);
    rescale(b, finite, recipe);
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

// DeepSpeed's DynamicLossScaler.update_scale, line by line, with scale_factor 2.
struct Reference {
  double cur_scale = 65536, min_scale = 1;
  int scale_window = 1000, delayed_shift = 2;
  int cur_hysteresis = delayed_shift, cur_iter = 0, last_overflow_iter = -1;

  double step(bool good) {
    if (!good) {
      if (delayed_shift == 1 || cur_hysteresis == 1) {
        cur_scale = std::max(cur_scale / 2, min_scale);
      } else {
        cur_hysteresis -= 1;
      }
      last_overflow_iter = cur_iter;
    } else if ((cur_iter - last_overflow_iter) % scale_window == 0) {
      cur_hysteresis = delayed_shift;
      cur_scale *= 2;
    }
    cur_iter += 1;
    return cur_scale;
  }
};

// torch.amp.GradScaler's (torch/amp/grad_scaler.py, amp_update_scale_) with growth 2 and backoff 0.5.
struct TorchReference {
  double scale = 65536;
  int growth_interval = 2000, growth_tracker = 0;

  double step(bool good) {
    if (!good) {
      scale *= 0.5;
      growth_tracker = 0;
    } else if (++growth_tracker == growth_interval) {
      scale *= 2;
      growth_tracker = 0;
    }
    return scale;
  }
};

TEST(LossScale_ManySteps, FollowsTheReference) {
  Update update;
  Reference reference;
  auto both = [&](bool good) {
    update.step(good);
    ASSERT_EQ(update.scale(), reference.step(good));
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

TEST(LossScale_OtherRules, FollowTheReferences) {
  std::mt19937 random(5);
  for (const LossScaleRecipe& recipe : {LossScaleRecipe{.initial = 4096, .window = 7, .hysteresis = 3, .minimum = 32},
                                        LossScaleRecipe{.initial = 3, .window = 1, .hysteresis = 1, .minimum = 0.75}}) {
    Update update(recipe);
    Reference reference{.cur_scale = recipe.initial,
                        .min_scale = recipe.minimum,
                        .scale_window = static_cast<int>(recipe.window),
                        .delayed_shift = static_cast<int>(recipe.hysteresis)};
    for (int k = 0; k < 300; ++k) {
      bool good = random() % 3 != 0;
      update.step(good);
      ASSERT_EQ(update.scale(), reference.step(good)) << k;
    }
  }
  Update update({.window = 5, .hysteresis = 1, .minimum = 0});
  TorchReference reference{.growth_interval = 5};
  for (int k = 0; k < 300; ++k) {
    bool good = random() % 5 != 0;
    update.step(good);
    ASSERT_EQ(update.scale(), reference.step(good)) << k;
  }
}

TEST(LossScale_Fixed, StaysAndStillHolds) {
  Update update({.fixed = 128});
  EXPECT_EQ(update.now.count("loss_scale"), 0u);  // no state
  update.step(true);
  update.step(false);
  EXPECT_EQ(update.now.at("w").f[0], 1);
  Builder b;
  ValueId scale = loss_scale(b, {.fixed = 128});
  EXPECT_EQ(element_f(*constant_values(b.graph())[scale], 0), 128);
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
