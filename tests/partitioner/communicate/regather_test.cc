// What sequence parallelism gathers in forward is made again in backward, and not kept.
#include "partitioner/communicate/regather_in_backward.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/graph/builder.h"
#include "ir/graph/verify.h"

namespace partita {
namespace {

// As where two ranks share a key head: each computes it for its half of the positions that were gathered.
TEST(Regather, IncludesWhatARankTakesOfIt) {
  Builder b;
  const ValueId x = b.input("x", {DType::kF32, {4, 16}}), g = b.input("g", {DType::kF32, {4, 8}}),
                coordinate = b.input("tensor1", {DType::kI64, {}}, InputKind::kCoordinate),
                w = b.state({.name = "w"}, {DType::kF32, {16, 8}});
  const ValueId gathered = b.emit("all_gather", {x}, {{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{2}}});
  const ValueId half =
      b.emit("shard_slice", {b.reshape(gathered, {8, 16}), coordinate}, {{"dim", int64_t{0}}, {"parts", int64_t{2}}});
  b.output("y", b.emit("matmul", {half, w}));
  b.context().segment = Segment::kBackward;
  b.output("dw", b.emit("matmul", {half, g}, {{"transpose_a", int64_t{1}}}));
  LocalProgram program{.graph = std::move(b).finish()};
  regather_in_backward(program, {0});
  const Graph& graph = program.graph;
  ASSERT_TRUE(verify(graph, Phase::kRank).ok()) << verify(graph, Phase::kRank);
  for (const char* name : {"all_gather", "shard_slice"}) {
    for (const Segment segment : {Segment::kForward, Segment::kBackward}) {
      EXPECT_EQ(
          std::ranges::count_if(graph.nodes, [&](const Node& n) { return n.op->name == name && n.segment == segment; }),
          1)
          << name;
    }
  }
  for (const Node& node : graph.nodes) {
    for (ValueId v : node.inputs) {
      const Node* made = graph.producer(v);
      if (made != nullptr) {
        EXPECT_EQ(made->segment, node.segment) << node.op->name;
      }
    }
  }
}

}  // namespace
}  // namespace partita
