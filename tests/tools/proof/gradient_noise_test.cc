#include "tools/proof/gradient_noise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

using ::testing::ElementsAre;

Tensor floats(std::vector<double> values) {
  const auto n = static_cast<int64_t>(values.size());
  return {{DType::kF32, {n}}, std::move(values), {}};
}

// w becomes w - 0.5 x, where x, rounded to bf16 and back, is its gradient.
TEST(GradientProbe, ItsUpdateTakesTheNoiseAndTheRestDoesNot) {
  Builder b;
  const TensorType type{DType::kF32, {2}};
  const ValueId x = b.input("x", type), w = b.state({.name = "w", .kind = StateKind::kParameter}, type);
  b.output("loss", b.reduce_sum(b.mul(x, w), {0}, false));
  b.context().segment = Segment::kBackward;
  const ValueId gradient = b.cast(b.cast(x, DType::kBF16), DType::kF32);
  b.output("twice", b.add(gradient, gradient));
  b.context().segment = Segment::kUpdate;
  b.set_next("w", b.sub(w, b.scale(gradient, 0.5)));
  const GradientProbe probe = probe_gradients(b.graph());
  const Graph& g = probe.graph;
  ASSERT_THAT(probe.names, ElementsAre("noise 0"));
  ASSERT_EQ(g.states.size(), 2u);
  EXPECT_EQ(g.states[1].name, "noise 0");
  EXPECT_EQ(g.states[1].kind, StateKind::kFrozen);
  std::vector<ValueId> wanted{g.states[0].next};
  for (const GraphOutput& o : g.outputs) {
    if (o.name == "grad/noise 0" || o.name == "twice") wanted.push_back(o.value);
  }
  ASSERT_EQ(wanted.size(), 3u);
  const std::vector<Tensor> found = evaluate_graph(g,
                                                   {{g.inputs[0].value, floats({2, 4})},
                                                    {g.states[0].value, floats({1, 1})},
                                                    {g.states[1].value, floats({0, 0.25})}},
                                                   wanted);
  EXPECT_THAT(found[0].f, ElementsAre(0, -1.125));
  EXPECT_THAT(found[1].f, ElementsAre(2, 4));
  EXPECT_THAT(found[2].f, ElementsAre(4, 8));
}

TEST(GradientNoise, IsOfARowAndNotOfWhatIsZero) {
  EXPECT_THAT(gradient_noise({1, 2, 0, 3, 0, 0, 0, 7}, {1, 4, 0, 3, 0, 0, 0, 7}, 4),
              ElementsAre(1, 1, 0, 1, 0, 0, 0, 0));
}

}  // namespace
}  // namespace partita
