// Products beside collectives in parts of rows: which are cut, and in what order the parts stand.
#include "partitioner/communicate/overlap_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "ir/graph/verify.h"

namespace partita {
namespace {

constexpr int64_t kRanks = 2, kRows = 8, kWidth = 4;

// A block's MLP under sequence parallelism: what ranks have of the rows is gathered for two products, and the third
// one's result is summed up and scattered.
class Mlp {
 public:
  Mlp() {
    x_ = b_.input("x", {DType::kF32, {kRows, kWidth}});
    for (ValueId& w : w_) w = b_.state({.name = "w" + std::to_string(&w - w_)}, {DType::kF32, {kWidth, kWidth}});
    const ValueId gathered = b_.reshape(b_.emit("all_gather", {x_}, group()), {kRanks * kRows, kWidth});
    const ValueId gate = b_.emit("silu", {b_.matmul(gathered, w_[0])}), up = b_.matmul(gathered, w_[1]);
    inner_ = b_.mul(gate, up);
    out_ = scattered(b_.matmul(inner_, w_[2]));
  }

  Builder& builder() { return b_; }
  ValueId inner() const { return inner_; }
  ValueId out() const { return out_; }
  ValueId weight(size_t k) const { return w_[k]; }
  static Attrs group() { return {{"axes", std::vector<int64_t>{0}}, {"parts", kRanks}}; }
  ValueId scattered(ValueId whole) {
    Attrs attrs = group();
    attrs.set("reduce", "sum");
    return b_.emit("reduce_scatter", {b_.reshape(whole, {kRanks, kRows, kWidth})}, std::move(attrs));
  }
  LocalProgram program() && {
    LocalProgram p;
    p.graph = std::move(b_).finish();
    return p;
  }

 private:
  Builder b_;
  ValueId x_, w_[3], inner_, out_;
};

// The names of collectives and products in their order.
std::string order(const Graph& graph, Segment segment) {
  std::string text;
  for (const Node& node : graph.nodes) {
    const bool counts = node.op->communicates || node.op->work == WorkKind::kMatrix;
    if (!counts || node.segment != segment) continue;
    text += node.op->name == "all_gather" ? 'g' : node.op->name == "matmul" ? (node.weight_gradient ? 'w' : 'p') : 's';
  }
  return text;
}

TEST(OverlapProducts, EachPartGoesFromItsGatherToItsSum) {
  Mlp mlp;
  mlp.builder().output("y", mlp.builder().reduce_sum(mlp.out(), {1}, false));
  LocalProgram program = std::move(mlp).program();
  EXPECT_EQ(order(program.graph, Segment::kForward), "gppps");
  EXPECT_EQ(overlap_products(program, 2), 3);
  ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
  // What the second part needs travels while the first one is computed, and what that one sends while the second is.
  EXPECT_EQ(order(program.graph, Segment::kForward), "ggpppsppps");
  for (const Node& node : program.graph.nodes) {
    if (node.op->name == "silu") {
      EXPECT_EQ(program.graph.type(node.outputs[0]).shape, (Shape{kRanks * kRows / 2, kWidth}));
    }
  }
}

TEST(OverlapProducts, GradientsOfWeightsAreComputedWhileTheSumTravels) {
  Mlp mlp;
  Builder& b = mlp.builder();
  b.output("y", b.reduce_sum(mlp.out(), {1}, false));
  b.context().segment = Segment::kBackward;
  const ValueId dy = b.input("dy", {DType::kF32, {kRanks * kRows, kWidth}});
  const ValueId dx = b.matmul(dy, mlp.weight(2), false, true);
  b.context().weight_gradient = true;
  b.output("dw", b.matmul(mlp.inner(), dy, true, false));
  b.context().weight_gradient = false;
  b.output("dx", b.reduce_sum(mlp.scattered(dx), {1}, false));
  LocalProgram program = std::move(mlp).program();
  EXPECT_EQ(order(program.graph, Segment::kBackward), "pws");
  EXPECT_EQ(overlap_products(program, 2), 4);
  ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
  EXPECT_EQ(order(program.graph, Segment::kBackward), "pspsw");
}

TEST(OverlapProducts, RowsThatDoNotDivideStayWhole) {
  Mlp mlp;
  mlp.builder().output("y", mlp.builder().reduce_sum(mlp.out(), {1}, false));
  LocalProgram program = std::move(mlp).program();
  const size_t nodes = program.graph.nodes.size();
  EXPECT_EQ(overlap_products(program, 3), 0);
  EXPECT_EQ(overlap_products(program, 1), 0);
  EXPECT_EQ(program.graph.nodes.size(), nodes);
}

// A contraction over the gathered rows needs all of them.
TEST(OverlapProducts, NothingSummedOverIsCut) {
  Builder b;
  const ValueId x = b.input("x", {DType::kF32, {kRows, kWidth}});
  const ValueId g = b.input("g", {DType::kF32, {kRanks * kRows, kWidth}});
  const ValueId gathered = b.reshape(b.emit("all_gather", {x}, Mlp::group()), {kRanks * kRows, kWidth});
  b.output("y", b.matmul(gathered, g, true, false));
  LocalProgram program;
  program.graph = std::move(b).finish();
  EXPECT_EQ(overlap_products(program, 2), 0);
}

}  // namespace
}  // namespace partita
