#include "passes/recognize/recognize_rotary.h"

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

// cos or sin of [s, r] angles that repeat.
ValueId table(Builder& b, Shape shape, bool sine, bool halves = true) {
  int64_t r = shape.back();
  return constant(b, DType::kF64, std::move(shape), [=](int64_t k) {
    double angle = static_cast<double>(k / r) / (1 + static_cast<double>(halves ? k % r % (r / 2) : k % r));
    return sine ? std::sin(angle) : std::cos(angle);
  });
}

ValueId rotate_half(Builder& b, ValueId x) {
  int64_t r = b.shape(x).back();
  return b.emit("concat", {b.neg(last_slice(b, x, r / 2, r)), last_slice(b, x, 0, r / 2)}, {{"dim", int64_t{3}}});
}

ValueId spelled(Builder& b, ValueId x, ValueId cos, ValueId sin) {
  return b.add(b.mul(x, cos), b.mul(rotate_half(b, x), sin));
}

TEST(Rotary_Recognised, ConstantTables) {
  for (const Shape& shape : {Shape{4, 6}, Shape{1, 1, 4, 6}, Shape{1, 4, 6}}) {
    Builder b;
    ValueId q = f64_input(b, "q", {2, 3, 4, 6}), k = f64_input(b, "k", {2, 1, 4, 6}), cos = table(b, shape, false),
            sin = table(b, shape, true);
    b.output("q", spelled(b, q, cos, sin));
    b.output("k", spelled(b, k, cos, sin));
    Graph g = recognised(recognize_rotary, std::move(b));
    EXPECT_EQ(count(g, "rotary"), 2);
    EXPECT_EQ(g.nodes.size(), 2u);
    EXPECT_EQ(g.type(the(g, "rotary").inputs[1]).shape, (Shape{1, 1, 4, 3}));
  }
}

TEST(Rotary_Recognised, TablesComputedFromRepeatedAngles) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 3, 4, 6}), positions = f64_input(b, "p", {2, 4, 1}),
          frequency = b.state({.name = "f", .kind = StateKind::kFrozen}, {DType::kF64, {3}});
  ValueId angles = b.mul(positions, frequency), both = b.emit("concat", {angles, angles}, {{"dim", int64_t{2}}});
  auto shaped = [&](std::string_view op) { return b.reshape(b.scale(b.emit(op, {both}), 1.25), {2, 1, 4, 6}); };
  b.output("y", spelled(b, x, shaped("cos"), shaped("sin")));
  Graph g = recognised(recognize_rotary, std::move(b));
  EXPECT_EQ(count(g, "rotary"), 1);
}

TEST(Rotary_Recognised, TableRowsPickedByPosition) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 3, 4, 6}), positions = b.input("p", {DType::kI64, {2, 4}});
  auto picked = [&](bool sine) {
    return b.reshape(b.emit("gather", {table(b, {16, 6}, sine), positions}, {{"dim", int64_t{0}}}), {2, 1, 4, 6});
  };
  b.output("y", spelled(b, x, picked(false), picked(true)));
  EXPECT_EQ(count(recognised(recognize_rotary, std::move(b)), "rotary"), 1);
}

TEST(Rotary_Recognised, PartOfTheFeatures) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 3, 4, 10}), cos = table(b, {4, 6}, false), sin = table(b, {4, 6}, true);
  ValueId head = last_slice(b, x, 0, 6), rest = last_slice(b, x, 6, 10);
  b.output("y", b.emit("concat", {spelled(b, head, cos, sin), rest}, {{"dim", int64_t{3}}}));
  Graph g = recognised(recognize_rotary, std::move(b));
  EXPECT_EQ(count(g, "rotary"), 1);
  EXPECT_EQ(g.nodes.size(), 1u);
}

TEST(Rotary_NotRecognised, HalvesDiffer) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 3, 4, 6});
  b.output("y", spelled(b, x, table(b, {4, 6}, false, false), table(b, {4, 6}, true)));
  EXPECT_EQ(count(recognised(recognize_rotary, std::move(b)), "rotary"), 0);
}

TEST(Rotary_NotRecognised, OtherSignOrder) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 3, 4, 6});
  ValueId turned = b.emit("concat", {last_slice(b, x, 3, 6), b.neg(last_slice(b, x, 0, 3))}, {{"dim", int64_t{3}}});
  b.output("y", b.add(b.mul(x, table(b, {4, 6}, false)), b.mul(turned, table(b, {4, 6}, true))));
  EXPECT_EQ(count(recognised(recognize_rotary, std::move(b)), "rotary"), 0);
}

TEST(Rotary_NotRecognised, OtherReader) {
  Builder b;
  ValueId x = f64_input(b, "x", {2, 3, 4, 6}), turned = rotate_half(b, x);
  b.output("y", b.add(b.mul(x, table(b, {4, 6}, false)), b.mul(turned, table(b, {4, 6}, true))));
  b.output("turned", turned);
  EXPECT_EQ(count(recognised(recognize_rotary, std::move(b)), "rotary"), 0);
}

}  // namespace
}  // namespace partita
