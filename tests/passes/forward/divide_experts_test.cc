#include "passes/forward/divide_experts.h"

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

constexpr int64_t kExperts = 6, kParts = 2, kRows = 8;  // random indices name five

struct Layer {
  Builder b;
  ValueId x = f64_input(b, "x", {kRows, 4}), chosen = b.input("chosen", {DType::kI64, {kRows}});
  int states = 0;

  ValueId weights(Shape shape) {
    return b.state({.name = "w" + std::to_string(states++), .kind = StateKind::kParameter}, {DType::kF64, shape});
  }
  ValueId product(ValueId rows, int64_t columns, int64_t experts = kExperts) {
    return b.emit("grouped_matmul", {rows, weights({experts, b.shape(rows)[1], columns}), chosen});
  }
};

Graph divided(Builder b) {
  return recognised(
      [](const Graph& graph, const PassContext& context) {
        PassContext with_parts = context;
        with_parts.expert_parts = kParts;
        return divide_experts(graph, with_parts);
      },
      std::move(b));
}

// The rows of each product: those of all parts, or of one.
std::vector<int64_t> rows_read(const Graph& g) {
  std::vector<int64_t> rows;
  for (const Node& node : g.nodes) {
    if (node.op->name == "grouped_matmul") rows.push_back(g.type(node.inputs[0]).shape[0]);
  }
  return rows;
}

// silu(gate) * up between the two products, as they are fused in Mixtral: no sum before the second product.
TEST(DivideExperts, RowsStayInPartsBetweenAnExpertsProducts) {
  Layer l;
  ValueId both = l.product(l.x, 6), gate = last_slice(l.b, both, 0, 3), up = last_slice(l.b, both, 3, 6);
  l.b.output("y", l.product(l.b.mul(l.b.emit("silu", {gate}), up), 4));
  Graph g = divided(std::move(l.b));
  EXPECT_EQ(rows_read(g), (std::vector<int64_t>{kRows, kParts * kRows}));
  EXPECT_EQ(count(g, "reduce_sum"), 1);
  EXPECT_EQ(g.type(the(g, "silu").outputs[0]).shape, (Shape{kParts * kRows, 3}));
}

TEST(DivideExperts, GateAndUpApart_ThroughCastsAndReshapes) {
  Layer l;
  ValueId gate = l.b.reshape(l.product(l.x, 3), {4, 2, 1, 3}), up = l.b.reshape(l.product(l.x, 3), {4, 2, 1, 3});
  ValueId h = l.b.mul(l.b.emit("gelu", {gate}, {{"approximate", int64_t{0}}}),
                      l.b.cast(l.b.cast(up, DType::kF64), DType::kF64));
  l.b.output("y", l.product(l.b.reshape(h, {kRows, 3}), 4));
  EXPECT_EQ(rows_read(divided(std::move(l.b))), (std::vector<int64_t>{kRows, kRows, kParts * kRows}));
}

// Weights of the choices, one for each row, are linear in what is zero.
TEST(DivideExperts, RowsAreWeightedInParts) {
  Layer l;
  ValueId weight = f64_input(l.b, "weight", {kRows, 1});
  l.b.output("y", l.product(l.b.mul(l.product(l.x, 3), weight), 4));
  EXPECT_EQ(rows_read(divided(std::move(l.b))), (std::vector<int64_t>{kRows, kParts * kRows}));
}

// Of a zero they make a number that is known, near which they are smooth.
TEST(DivideExperts, FunctionsThatDoNotKeepZeros) {
  Layer l;
  ValueId h = l.b.add_scalar(l.b.emit("sigmoid", {l.product(l.x, 3)}), 1.5);
  l.b.output("y", l.product(l.b.emit("log", {h}), 4));
  EXPECT_EQ(rows_read(divided(std::move(l.b))), (std::vector<int64_t>{kRows, kParts * kRows}));
}

// What a row is elsewhere is not known, or infinite, or has an infinite slope: the parts are summed up first.
TEST(DivideExperts, PartsAreSummedUpBeforeWhatIsNotSafeInAllRows) {
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    Layer l;
    ValueId y = l.product(l.x, 3), bias = l.weights({3});
    ValueId h = kind == 0   ? l.b.emit("silu", {l.b.add(y, bias)})
                : kind == 1 ? l.b.emit("log", {l.b.mul(y, y)})
                : kind == 2 ? l.b.emit("sqrt", {l.b.emit("abs", {y})})
                            : l.b.emit("softmax", {y}, {{"dim", int64_t{0}}});  // rows meet
    l.b.output("y", l.product(h, 4));
    Graph g = divided(std::move(l.b));
    EXPECT_EQ(rows_read(g), (std::vector<int64_t>{kRows, kRows}));
    EXPECT_EQ(count(g, "reduce_sum"), 2);
  }
}

TEST(DivideExperts, AnotherChoiceReadsTheSum) {
  Layer l;
  ValueId y = l.product(l.x, 4);
  l.chosen = l.b.input("others", {DType::kI64, {kRows}});
  l.b.output("y", l.product(y, 4));
  EXPECT_EQ(rows_read(divided(std::move(l.b))), (std::vector<int64_t>{kRows, kRows}));
}

// Of what both the next product and others read, the others read the sum.
TEST(DivideExperts, OtherReadersHaveTheSum) {
  Layer l;
  ValueId y = l.b.emit("tanh", {l.product(l.x, 3)});
  l.b.output("h", y);
  l.b.output("y", l.product(y, 4));
  EXPECT_EQ(rows_read(divided(std::move(l.b))), (std::vector<int64_t>{kRows, kParts * kRows}));
}

TEST(DivideExperts, WhatPartsDoNotDivideStays) {
  Layer l;
  l.b.output("y", l.product(l.x, 4, 5));
  Graph g = divided(std::move(l.b));
  EXPECT_EQ(the(g, "grouped_matmul").inputs.size(), 3u);
}

}  // namespace
}  // namespace partita
