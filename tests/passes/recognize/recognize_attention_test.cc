#include "passes/recognize/recognize_attention.h"

#include <limits>

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLowest = -3.4028234663852886e38;

constexpr int64_t kB = 2, kH = 4, kS = 5, kD = 6;

struct Model {
  Builder b;
  ValueId q, k, v;

  explicit Model(int64_t kv = kH) {
    q = f64_input(b, "q", {kB, kH, kS, kD});
    k = f64_input(b, "k", {kB, kv, kS, kD});
    v = f64_input(b, "v", {kB, kv, kS, kD});
  }

  ValueId softmax(ValueId scores) { return b.emit("softmax", {scores}, {{"dim", int64_t{b.rank(scores) - 1}}}); }
  ValueId guarded(ValueId p) { return b.select(b.emit("is_nan", {p}), b.scalar(DType::kF64, 0), p); }
  ValueId swapped(ValueId x) { return b.transpose(x, {0, 1, 3, 2}); }
  ValueId scores() { return b.scale(b.matmul(q, k, false, true), 0.5); }
  // softmax(scores + mask) v.
  Graph finish(ValueId scores) {
    b.output("y", b.matmul(softmax(scores), v));
    return recognised(recognize_attention, std::move(b));
  }
  ValueId position(bool of_query) {
    ValueId at = b.emit("iota", {}, {{"size", kS}, {"to", DType::kI64}});
    return b.reshape(at, of_query ? Shape{1, 1, kS, 1} : Shape{1, 1, 1, kS});
  }
  ValueId causal() { return b.emit("le", {position(false), position(true)}); }
  ValueId padding() { return b.input("padding", {DType::kBool, {kB, 1, 1, kS}}); }
  // Key 0 is never hidden, so that no row is without keys.
  ValueId soft_padding() {
    return b.emit("or", {padding(), b.emit("eq", {position(false), b.scalar(DType::kI64, 0)})});
  }
  ValueId additive(ValueId condition, double fill) {
    return b.select(condition, b.scalar(DType::kF64, 0), b.scalar(DType::kF64, fill));
  }
};

void expect_attention(const Graph& g, bool causal, bool mask, double scale = 0.5) {
  ASSERT_EQ(count(g, "attention"), 1);
  EXPECT_EQ(count(g, "softmax"), 0);
  const Node& a = the(g, "attention");
  EXPECT_EQ(a.attrs.i("causal"), causal);
  EXPECT_NEAR(a.attrs.f("scale"), scale, 1e-15);
  EXPECT_EQ(a.inputs.size() > 3, mask);
}

TEST(Attention_Plain, WaysToScale) {
  {
    Model m;
    Graph g = m.finish(m.scores());
    expect_attention(g, false, false);
    EXPECT_EQ(g.nodes.size(), 1u);
  }
  {
    Model m;
    expect_attention(m.finish(m.b.div(m.b.matmul(m.q, m.swapped(m.k)), m.b.scalar(DType::kF64, 2))), false, false);
  }
  {
    Model m;
    Graph g = m.finish(m.b.matmul(m.b.scale(m.q, 0.25), m.b.scale(m.swapped(m.k), 2)));
    expect_attention(g, false, false);
    EXPECT_EQ(g.nodes.size(), 1u);
  }
  {
    Model m;
    expect_attention(m.finish(m.b.matmul(m.q, m.k, false, true)), false, false, 1);
  }
}

TEST(Attention_Keys, TransposedInRank3AsExportersDo) {
  Model m;
  ValueId flat = m.b.transpose(m.b.reshape(m.k, {kB * kH, kS, kD}), {0, 2, 1}),
          back = m.b.reshape(flat, {kB, kH, kD, kS});
  Graph g = m.finish(m.b.matmul(m.b.scale(m.q, std::sqrt(0.5)), m.b.scale(back, std::sqrt(0.5))));
  expect_attention(g, false, false);
  EXPECT_EQ(g.nodes.size(), 1u);
}

TEST(Attention_Keys, TransposedWithTheirHeads) {
  Model m;
  m.k = f64_input(m.b, "k2", {kB, kS, kH, kD});
  Graph g = m.finish(m.b.scale(m.b.matmul(m.q, m.b.transpose(m.k, {0, 2, 3, 1})), 0.5));
  expect_attention(g, false, false);
  EXPECT_EQ(count(g, "transpose"), 1);
}

TEST(Attention_GroupedQueries, KeysAndValuesAreUsedAsBefore) {
  for (bool turned : {false, true}) {
    Model m(2);
    auto repeated = [&](ValueId x) {
      return m.b.reshape(m.b.broadcast_to(m.b.reshape(x, {kB, 2, 1, kS, kD}), {kB, 2, 2, kS, kD}), {kB, kH, kS, kD});
    };
    ValueId k = repeated(m.k);
    m.v = repeated(m.v);
    ValueId scores =
        turned ? m.b.matmul(m.q, m.b.scale(m.b.reshape(m.b.transpose(m.b.reshape(k, {kB * kH, kS, kD}), {0, 2, 1}),
                                                       {kB, kH, kD, kS}),
                                           0.5))
               : m.b.scale(m.b.matmul(m.q, k, false, true), 0.5);
    Graph g = m.finish(scores);
    expect_attention(g, false, false);
    EXPECT_EQ(g.type(the(g, "attention").inputs[1]).shape, (Shape{kB, 2, kS, kD}));
    EXPECT_EQ(g.nodes.size(), 1u);
  }
}

TEST(Attention_GroupedQueries, OneHeadForAll) {
  Model m(1);
  expect_attention(m.finish(m.scores()), false, false);
}

TEST(Attention_GroupedQueries, ExpandedInTheOtherOrderStayExpanded) {
  Model m(2);
  auto tiled = [&](ValueId x) {
    return m.b.reshape(m.b.broadcast_to(m.b.reshape(x, {kB, 1, 2, kS, kD}), {kB, 2, 2, kS, kD}), {kB, kH, kS, kD});
  };
  ValueId k = tiled(m.k);
  m.v = tiled(m.v);
  Graph g = m.finish(m.b.scale(m.b.matmul(m.q, k, false, true), 0.5));
  expect_attention(g, false, false);
  EXPECT_EQ(count(g, "broadcast"), 2);
}

TEST(Attention_Causal, ConstantsOfEachKind) {
  auto below = [](int64_t k) { return k % kS <= k / kS % kS; };
  for (double fill : {-kInfinity, kLowest, -1e9, -1e4}) {
    Model m;
    ValueId mask = constant(m.b, DType::kF64, {kS, kS}, [&](int64_t k) { return below(k) ? 0 : fill; });
    Graph g = m.finish(m.b.add(m.scores(), mask));
    expect_attention(g, true, false);
    EXPECT_EQ(g.nodes.size(), 1u);
  }
  for (double fill : {-kInfinity, -1e9}) {
    Model m;
    ValueId mask = constant(m.b, DType::kBool, {1, 1, kS, kS}, below);
    expect_attention(m.finish(m.b.select(mask, m.scores(), m.b.scalar(DType::kF64, fill))), true, false);
    Model n;
    ValueId hidden = constant(n.b, DType::kBool, {1, 1, kS, kS}, [&](int64_t k) { return !below(k); });
    expect_attention(n.finish(n.b.select(hidden, n.b.scalar(DType::kF64, fill), n.scores())), true, false);
  }
}

TEST(Attention_Causal, FrozenStateOfAModel) {
  Model m;
  Tensor t = Tensor::zeros({DType::kBool, {1, 1, kS, kS}});
  for (size_t k = 0; k < t.i.size(); ++k) t.i[k] = static_cast<int64_t>(k) % kS <= static_cast<int64_t>(k) / kS;
  ValueId mask = m.b.state({.name = "bias", .kind = StateKind::kFrozen, .initial = to_literal(t)}, t.type);
  expect_attention(m.finish(m.b.select(mask, m.scores(), m.b.scalar(DType::kF64, kLowest))), true, false);
}

TEST(Attention_Causal, ComputedFromPositions) {
  for (double fill : {-kInfinity, kLowest}) {
    Model m;
    ValueId yes = m.b.scalar(DType::kBool, 1),
            zeros = m.b.emit("eq", {m.b.scale(m.position(true), 0), m.b.scale(m.position(false), 0)});
    ValueId mask = m.b.broadcast_to(m.b.emit("and", {m.b.emit("and", {yes, zeros}), m.causal()}), {kB, 1, kS, kS});
    expect_attention(m.finish(m.b.add(m.scores(), m.additive(mask, fill))), true, false);
  }
}

TEST(Attention_Causal, OfManyPositionsAndOfOneTooMany) {
  constexpr int64_t kMany = 65536;
  for (int64_t ahead : {0, 1}) {  // keys that a query sees beyond its own position
    Builder b;
    ValueId q = f64_input(b, "q", {1, 1, kMany, 1}), k = f64_input(b, "k", {1, 1, kMany, 1});
    ValueId at = b.emit("iota", {}, {{"size", kMany}, {"to", DType::kI64}});
    ValueId last = b.add(b.reshape(at, {1, 1, kMany, 1}), b.scalar(DType::kI64, static_cast<double>(ahead)));
    ValueId sees = b.emit("le", {b.reshape(at, {1, 1, 1, kMany}), last});
    ValueId mask = b.select(sees, b.scalar(DType::kF64, 0), b.scalar(DType::kF64, -kInfinity));
    ValueId scores = b.add(b.matmul(q, k, false, true), mask);
    b.output("y", b.matmul(b.emit("softmax", {scores}, {{"dim", int64_t{3}}}), f64_input(b, "v", {1, 1, kMany, 1})));
    auto g = recognize_attention(std::move(b).finish(), PassContext());
    ASSERT_TRUE(g.ok()) << g.status();
    expect_attention(*g, ahead == 0, ahead != 0, 1);
  }
}

TEST(Attention_Causal, LowerTriangleOfOnesComparedWithZero) {
  Model m;
  ValueId triangle = m.b.select(m.causal(), m.b.full(DType::kF64, {1, 1, kS, kS}, 1), m.b.scalar(DType::kF64, 0));
  ValueId hidden = m.b.emit("eq", {triangle, m.b.scalar(DType::kF64, 0)});
  ValueId mask = m.b.select(hidden, m.b.scalar(DType::kF64, -kInfinity), m.b.scalar(DType::kF64, 0));
  expect_attention(m.finish(m.b.add(m.scores(), mask)), true, false);
}

TEST(Attention_Causal, FewerKeysThanQueries) {  // the first rows have no key
  for (double fill : {-kInfinity, kLowest}) {
    Model m;
    m.k = f64_input(m.b, "k3", {kB, kH, 3, kD});
    m.v = f64_input(m.b, "v3", {kB, kH, 3, kD});
    ValueId mask = constant(m.b, DType::kF64, {kS, 3}, [&](int64_t k) { return k % 3 <= k / 3 + 3 - kS ? 0 : fill; });
    m.b.output("y", m.b.matmul(m.guarded(m.softmax(m.b.add(m.scores(), mask))), m.v));
    expect_attention(recognised(recognize_attention, std::move(m.b)), fill == -kInfinity, fill != -kInfinity);
  }
}

TEST(Attention_Masks, NotCausalStayOperands) {
  {
    Model m;
    ValueId strictly =
        constant(m.b, DType::kF64, {kS, kS}, [](int64_t k) { return k % kS <= k / kS + 1 ? 0 : -kInfinity; });
    expect_attention(m.finish(m.b.add(m.scores(), strictly)), false, true);
  }
  {
    Model m;
    ValueId bias = f64_input(m.b, "bias", {kH, kS, kS});
    Graph g = m.finish(m.b.add(m.scores(), bias));
    expect_attention(g, false, true);
    EXPECT_EQ(g.type(the(g, "attention").inputs[3]).shape, (Shape{1, kH, kS, kS}));
  }
}

TEST(Attention_Masks, PaddingKeepsItsSmallShape) {
  for (double fill : {-kInfinity, kLowest}) {
    Model m;
    ValueId yes = m.b.broadcast_to(m.b.scalar(DType::kBool, 1), {1, 1, kS, 1});
    ValueId mask = m.b.broadcast_to(m.b.emit("and", {yes, m.soft_padding()}), {kB, 1, kS, kS});
    Graph g = m.finish(m.b.add(m.scores(), m.additive(mask, fill)));
    expect_attention(g, false, true);
    const TensorType& type = g.type(the(g, "attention").inputs[3]);
    EXPECT_EQ(type.shape, (Shape{kB, 1, 1, kS}));
    EXPECT_EQ(type.dtype, fill == -kInfinity ? DType::kBool : DType::kF64);
  }
}

TEST(Attention_Masks, PaddingAndCausality) {
  {
    Model m;  // hidden is hidden: causality comes off
    Graph g = m.finish(m.b.add(m.scores(), m.additive(m.b.emit("and", {m.soft_padding(), m.causal()}), -kInfinity)));
    expect_attention(g, true, true);
    EXPECT_EQ(g.type(the(g, "attention").inputs[3]).shape, (Shape{kB, 1, 1, kS}));
  }
  {
    Model m;  // a row without keys attends everything: the low numbers must stay together
    expect_attention(m.finish(m.b.add(m.scores(), m.additive(m.b.emit("and", {m.padding(), m.causal()}), kLowest))),
                     false, true);
  }
  {
    Model m;
    ValueId s = m.b.select(m.causal(), m.scores(), m.b.scalar(DType::kF64, kLowest));
    expect_attention(m.finish(m.b.add(s, m.additive(m.padding(), kLowest))), false, true);
  }
}

TEST(Attention_Masks, PaddingAsNumbers) {  // (1 - mask) * -10000
  Model m;
  ValueId mask = m.b.cast(m.soft_padding(), DType::kF64);
  ValueId low = m.b.scale(m.b.sub(m.b.scalar(DType::kF64, 1), mask), -10000);
  expect_attention(m.finish(m.b.add(m.scores(), low)), false, true);
}

TEST(Attention_NanGuard, RowsWithoutKeysGiveZero) {
  Model m;
  ValueId rows = m.b.input("rows", {DType::kBool, {kB, 1, kS, 1}});
  ValueId scores = m.b.add(m.scores(), m.additive(rows, -kInfinity));
  m.b.output("y", m.b.matmul(m.guarded(m.softmax(scores)), m.v));
  expect_attention(recognised(recognize_attention, std::move(m.b)), false, true);
}

TEST(Attention_Rank3, HeadsFoldedIntoTheBatch) {
  for (bool from_rank_4 : {false, true}) {
    Model m;
    ValueId q = from_rank_4 ? m.b.reshape(m.q, {kB * kH, kS, kD}) : f64_input(m.b, "q3", {kB * kH, kS, kD});
    ValueId k = m.b.reshape(m.k, {kB * kH, kS, kD});
    m.v = m.b.reshape(m.v, {kB * kH, kS, kD});
    Graph g = m.finish(m.b.scale(m.b.matmul(q, m.b.transpose(k, {0, 2, 1})), 0.5));
    expect_attention(g, false, false);
    EXPECT_EQ(g.type(the(g, "attention").inputs[0]).shape,
              from_rank_4 ? (Shape{kB, kH, kS, kD}) : (Shape{kB * kH, 1, kS, kD}));
  }
}

TEST(Attention_Rank3, MasksBetweenReshapes) {
  Model m;
  ValueId q = m.b.reshape(m.q, {kB * kH, kS, kD}), k = m.b.reshape(m.k, {kB * kH, kS, kD}),
          v = m.b.reshape(m.v, {kB * kH, kS, kD});
  ValueId bias = f64_input(m.b, "bias", {kB * kH, 1, kS}),
          s = m.b.add(m.b.scale(m.b.matmul(q, k, false, true), 0.5), bias);
  ValueId masked = m.b.add(m.b.reshape(s, {kB, kH, kS, kS}), m.additive(m.causal(), -kInfinity));
  m.b.output("y", m.b.matmul(m.b.reshape(m.softmax(masked), {kB * kH, kS, kS}), v));
  expect_attention(recognised(recognize_attention, std::move(m.b)), true, true);
}

TEST(Attention_Op, MaskAndGroupsAreSimplified) {
  Model m(2);
  auto repeated = [&](ValueId x) {
    return m.b.reshape(m.b.broadcast_to(m.b.reshape(x, {kB, 2, 1, kS, kD}), {kB, 2, 2, kS, kD}), {kB, kH, kS, kD});
  };
  ValueId mask = m.b.broadcast_to(m.causal(), {kB, 1, kS, kS});
  m.b.output(
      "y", m.b.emit("attention", {m.q, repeated(m.k), repeated(m.v), mask}, {{"scale", 0.5}, {"causal", int64_t{0}}}));
  Graph g = recognised(recognize_attention, std::move(m.b));
  expect_attention(g, true, false);
  EXPECT_EQ(g.nodes.size(), 1u);
}

TEST(Attention_NotRecognised, OtherReaders) {
  Model m;
  ValueId p = m.softmax(m.scores());
  m.b.output("y", m.b.matmul(p, m.v));
  m.b.output("p", p);
  EXPECT_EQ(count(recognised(recognize_attention, std::move(m.b)), "attention"), 0);
}

TEST(Attention_NotRecognised, OtherAxisOrBetween) {
  {
    Model m;
    m.b.output("y", m.b.matmul(m.b.emit("softmax", {m.scores()}, {{"dim", int64_t{2}}}), m.v));
    EXPECT_EQ(count(recognised(recognize_attention, std::move(m.b)), "attention"), 0);
  }
  {
    Model m;  // soft cap
    EXPECT_EQ(count(m.finish(m.b.emit("tanh", {m.scores()})), "attention"), 0);
  }
  {
    Model m;  // the scale is the mask's too
    EXPECT_EQ(count(m.finish(m.b.scale(m.b.add(m.scores(), f64_input(m.b, "bias", {kS, kS})), 3)), "attention"), 0);
  }
  {
    Model m;  // a row without keys would get the mean of all values
    EXPECT_EQ(count(m.finish(m.b.select(m.padding(), m.scores(), m.b.scalar(DType::kF64, -1e9))), "attention"), 0);
  }
}

}  // namespace
}  // namespace partita
