// Which frozen weights are held in 16 bits, and that what is computed with them stays the same, bit for bit.
#include "passes/forward/narrow_frozen.h"

#include "ir/graph/verify.h"
#include "passes/forward/mixed_precision.h"
#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

// That both 16-bit types have: the evaluator does not round what it computes.
Literal values(const Shape& shape) {
  Tensor t = Tensor::zeros({DType::kF32, shape});
  for (size_t k = 0; k < t.f.size(); ++k) t.f[k] = 0.25 + 0.0625 * static_cast<double>(k % 17);
  return to_literal(t);
}

ValueId weight(Builder& b, std::string name, Shape shape, StateKind kind = StateKind::kFrozen) {
  Literal initial = values(shape);
  return b.state({.name = std::move(name), .kind = kind, .parameter = {}, .initial = std::move(initial)},
                 {DType::kF32, std::move(shape)});
}

// The graph in 16 bits, before and after; both are evaluated from the same f32 values.
Graph held(Builder b, Precision precision = Precision::kBf16) {
  PassContext context{.recipe = {.precision = precision}};
  const Graph before = *mixed_precision(std::move(b).finish(), context);
  auto after = narrow_frozen(before, context);
  EXPECT_TRUE(after.ok()) << after.status();
  EXPECT_TRUE(verify(*after, Phase::kImported).ok()) << verify(*after, Phase::kImported);
  expect_same_values(before, *after, 0);
  return *std::move(after);
}

DType type_of(const Graph& graph, std::string_view state) {
  for (const State& s : graph.states) {
    if (s.name == state) return graph.type(s.value).dtype;
  }
  return DType::kInvalid;
}

TEST(NarrowFrozen, HoldsWhatIsMultipliedWithInSixteenBits) {
  for (auto [precision, dtype] : {std::pair{Precision::kBf16, DType::kBF16}, {Precision::kFp16, DType::kF16}}) {
    Builder b;
    ValueId x = b.input("x", {DType::kF32, {4, 8}});
    ValueId turned = b.transpose(weight(b, "turned", {16, 8}), {1, 0});
    ValueId y = b.matmul(b.matmul(x, turned), weight(b, "w", {16, 8}));
    y = b.add(b.matmul(y, weight(b, "trained", {8, 8}, StateKind::kParameter)), weight(b, "bias", {8}));
    b.output("y", b.emit_all("layer_norm", {y, weight(b, "scale", {8})}, {{"axis", 1}, {"epsilon", 1e-5}})[0]);
    const Graph g = held(std::move(b), precision);
    EXPECT_EQ(type_of(g, "w"), dtype);
    EXPECT_EQ(type_of(g, "turned"), dtype);
    EXPECT_EQ(type_of(g, "trained"), DType::kF32);
    EXPECT_EQ(type_of(g, "bias"), DType::kF32);  // used as they are
    EXPECT_EQ(type_of(g, "scale"), DType::kF32);
    int copies = 0;
    for (const Node& n : g.nodes) copies += n.segment == Segment::kPrologue && n.op->name == "cast";
    EXPECT_EQ(copies, 1);  // of what is trained
  }
}

TEST(NarrowFrozen, KeepsWhatIsReadInF32AsWell) {
  Builder b;
  ValueId ids = b.input("ids", {DType::kI64, {3}}), table = weight(b, "table", {5, 8}), w = weight(b, "w", {8, 8}),
          out = weight(b, "out", {8, 8});
  ValueId x = b.emit("gather", {table, ids}, {{"dim", 0}});
  b.output("y", b.matmul(b.matmul(x, w), table, false, true));
  b.output("norm", b.reduce_sum(b.mul(w, w), {0, 1}, false));
  b.output("z", b.matmul(x, out));
  b.output("out", out);
  const Graph g = held(std::move(b));
  for (const char* name : {"table", "w", "out"}) EXPECT_EQ(type_of(g, name), DType::kF32) << name;
}

TEST(NarrowFrozen, DoesNotMindReadersThatNobodyAsksFor) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {4, 8}}), w = weight(b, "w", {8, 8});
  b.mul(w, w);
  b.output("y", b.matmul(x, w));
  EXPECT_EQ(type_of(held(std::move(b)), "w"), DType::kBF16);
}

TEST(NarrowFrozen, LeavesOtherPrecisionsAlone) {
  Builder b;
  b.output("y", b.matmul(b.input("x", {DType::kF32, {4, 8}}), weight(b, "w", {8, 8})));
  EXPECT_EQ(type_of(held(std::move(b), Precision::kFp32), "w"), DType::kF32);
}

}  // namespace
}  // namespace partita
