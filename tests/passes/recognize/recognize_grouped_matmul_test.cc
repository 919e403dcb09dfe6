#include "passes/recognize/recognize_grouped_matmul.h"

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

constexpr int64_t kExperts = 5;  // as many as random indices name

ValueId experts(Builder& b, Shape matrix) {
  matrix.insert(matrix.begin(), kExperts);
  return b.state({.name = "experts", .kind = StateKind::kParameter}, {DType::kF64, matrix});
}
ValueId chosen(Builder& b, Shape shape) { return b.input("chosen", {DType::kI64, std::move(shape)}); }
ValueId pick(Builder& b, ValueId stack, ValueId indices) {
  return b.emit("gather", {stack, indices}, {{"dim", int64_t{0}}});
}

void expect_grouped(Builder b, int64_t transposed) {
  Graph g = recognised(recognize_grouped_matmul, std::move(b));
  EXPECT_EQ(count(g, "grouped_matmul"), 1);
  EXPECT_EQ(count(g, "matmul") + count(g, "gather") + count(g, "gather_nd"), 0);
  EXPECT_EQ(the(g, "grouped_matmul").attrs.i("transpose_b"), transposed);
  EXPECT_EQ(the(g, "grouped_matmul").inputs[1], g.states[0].value);
}

TEST(GroupedMatmul_Recognised, RowsTimesGatheredMatrices) {
  Builder b;
  ValueId w = experts(b, {4, 3}), x = f64_input(b, "x", {8, 1, 4});
  b.output("y", b.matmul(x, pick(b, w, chosen(b, {8}))));
  expect_grouped(std::move(b), 0);
}

TEST(GroupedMatmul_Recognised, GatheredMatricesTimesColumns) {
  Builder b;
  ValueId w = experts(b, {3, 4}), x = f64_input(b, "x", {8, 4, 1}), indices = b.reshape(chosen(b, {4, 2}), {8, 1});
  b.output("y", b.matmul(b.emit("gather_nd", {w, indices}, {{"batch_dims", int64_t{0}}}), x));
  expect_grouped(std::move(b), 1);
}

TEST(GroupedMatmul_Recognised, SeveralColumns) {
  Builder b;
  ValueId w = experts(b, {4, 3}), x = f64_input(b, "x", {8, 2, 4});
  b.output("y", b.matmul(pick(b, w, chosen(b, {8})), x, true, true));
  expect_grouped(std::move(b), 0);
}

TEST(GroupedMatmul_Recognised, OneRowForSeveralMatrices) {
  Builder b;
  ValueId w = experts(b, {4, 3}), x = f64_input(b, "x", {8, 1, 2, 4});
  b.output("y", b.matmul(x, pick(b, w, chosen(b, {8, 2}))));
  expect_grouped(std::move(b), 0);
}

TEST(GroupedMatmul_Recognised, SeveralRowsForOneMatrix) {
  Builder b;
  ValueId w = experts(b, {4, 3}), x = f64_input(b, "x", {3, 8, 2, 4});
  b.output("y", b.matmul(x, b.reshape(pick(b, w, chosen(b, {8})), {1, 8, 4, 3})));
  expect_grouped(std::move(b), 0);
}

TEST(GroupedMatmul_Recognised, ThroughCastsReshapesAndTranspositions) {
  Builder b;
  ValueId w = b.state({.name = "experts", .kind = StateKind::kParameter}, {DType::kF32, {kExperts, 3, 4}}),
          x = f64_input(b, "x", {4, 2, 1, 4});
  ValueId picked = b.reshape(pick(b, w, chosen(b, {8})), {4, 2, 3, 4});
  b.output("y", b.matmul(x, b.cast(b.transpose(picked, {0, 1, 3, 2}), DType::kF64)));
  Graph g = recognised(recognize_grouped_matmul, std::move(b));
  EXPECT_EQ(count(g, "grouped_matmul"), 1);
  EXPECT_EQ(count(g, "gather"), 0);
  EXPECT_EQ(g.type(the(g, "cast").outputs[0]).shape, (Shape{kExperts, 3, 4}));  // of the experts, not of copies
}

// What an export repeats for each of a token's experts, the product reads where it lies.
TEST(GroupedMatmul_Recognised, WithoutCopiesOfRows) {
  Builder b;
  ValueId w = experts(b, {3, 4}), x = f64_input(b, "x", {8, 4});
  ValueId rows = b.reshape(b.broadcast_to(b.reshape(x, {8, 1, 4}), {8, 2, 4}), {16, 4, 1});
  b.output("y", b.matmul(pick(b, w, chosen(b, {16})), rows));
  Graph g = recognised(recognize_grouped_matmul, std::move(b));
  EXPECT_EQ(count(g, "broadcast"), 0);
  EXPECT_EQ(the(g, "grouped_matmul").inputs[0], g.inputs[0].value);
}

TEST(GroupedMatmul_NotRecognised, WhereCopiesTakeNoMore) {
  Builder b;
  ValueId w = experts(b, {4, 3}), x = f64_input(b, "x", {5, 1, 4});
  b.output("y", b.matmul(x, pick(b, w, chosen(b, {5}))));
  EXPECT_EQ(count(recognised(recognize_grouped_matmul, std::move(b)), "grouped_matmul"), 0);
}

TEST(GroupedMatmul_NotRecognised, ConstantIndices) {
  Builder b;
  ValueId w = experts(b, {4, 3}), x = f64_input(b, "x", {8, 1, 4}),
          fixed = constant(b, DType::kI64, {8}, [](int64_t k) { return static_cast<double>(k % kExperts); });
  b.output("y", b.matmul(x, pick(b, w, fixed)));
  EXPECT_EQ(count(recognised(recognize_grouped_matmul, std::move(b)), "grouped_matmul"), 0);
}

TEST(GroupedMatmul_NotRecognised, RowsGatheredIntoAMatrix) {
  Builder b;  // an embedding's rows are no matrices, whatever shape they take
  ValueId w = b.state({.name = "table", .kind = StateKind::kParameter}, {DType::kF64, {kExperts, 4}}),
          x = f64_input(b, "x", {8, 2, 4});
  b.output("y", b.matmul(x, b.reshape(pick(b, w, chosen(b, {8})), {8, 4, 1})));
  EXPECT_EQ(count(recognised(recognize_grouped_matmul, std::move(b)), "grouped_matmul"), 0);
}

TEST(GroupedMatmul_NotRecognised, MatricesThatAReshapeTearsApart) {
  Builder b;
  ValueId w = experts(b, {4, 3}), x = f64_input(b, "x", {8, 1, 3});
  b.output("y", b.matmul(x, b.reshape(pick(b, w, chosen(b, {8})), {8, 3, 4})));
  EXPECT_EQ(count(recognised(recognize_grouped_matmul, std::move(b)), "grouped_matmul"), 0);
}

}  // namespace
}  // namespace partita
