// Gathers of stored parameters start early, within a bound. That results stay the same is part of the property test.
#include "partitioner/prefetch_gathers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/verify.h"
#include "partitioner/localize.h"
#include "tests/partitioner/random_model.h"

namespace partita {
namespace {

// A model over two ranks that store half of each parameter.
LocalProgram stored_in_parts() {
  RandomModel model{.layers = {2, 3, 2, 3}, .accumulate = true};
  Graph graph = training_graph(model);
  ShardingPlan plan;
  plan.mesh.axes = {{"data", 2}};
  for (const GraphInput& in : graph.inputs) {
    Sharding s = Sharding::replicated(graph.type(in.value).shape);
    s.dims[0][0].axes = {0};
    plan.inputs.push_back(std::move(s));
  }
  for (const State& s : graph.states) {
    Sharding whole = Sharding::replicated(graph.type(s.value).shape), half = whole;
    if (s.kind == StateKind::kParameter) half.dims[0][0].axes = {0};
    plan.states.push_back(StateLayout{half, whole, true});
    if (s.kind == StateKind::kAccumulator) plan.states.back().reset();
  }
  auto local = localize(graph, plan);
  EXPECT_TRUE(local.ok()) << local.status();
  return *std::move(local);
}

// Per node that gathers a matrix, how many nodes that compute with matrices stand between it and its first reader.
std::vector<int> products_meanwhile(const Graph& graph) {
  auto readers = uses(graph);
  std::vector<int> out;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op->name != "all_gather") continue;
    ValueId v = node.outputs[0];
    while (readers[v].size() == 1 && graph.nodes[readers[v][0]].op->view) v = graph.nodes[readers[v][0]].outputs[0];
    int products = 0;
    for (NodeId k = static_cast<NodeId>(n); !readers[v].empty() && k < readers[v][0]; ++k)
      products += graph.nodes[k].op->name == "matmul";
    out.push_back(products);
  }
  return out;
}

int most(const std::vector<int>& x) { return *std::max_element(x.begin(), x.end()); }

TEST(PrefetchGathers, StartWhileEarlierOnesAreComputedWith) {
  LocalProgram program = stored_in_parts();
  ASSERT_EQ(most(products_meanwhile(program.graph)), 0);
  const int64_t before = gathered_bytes(program.graph);
  constexpr int64_t kMatrix = 8 * 16 * 8;  // the largest
  prefetch_gathers(program);
  ASSERT_TRUE(verify(program.graph, Phase::kRank).ok()) << verify(program.graph, Phase::kRank);
  EXPECT_GE(most(products_meanwhile(program.graph)), 1);
  EXPECT_GT(gathered_bytes(program.graph), before);
  EXPECT_LE(gathered_bytes(program.graph), before + kMatrix);
}

TEST(PrefetchGathers, OfWhatIsWhole_ChangeNothing) {
  Graph graph = training_graph({.layers = {2}});
  LocalProgram program{.graph = graph};
  prefetch_gathers(program);
  EXPECT_EQ(gathered_bytes(program.graph), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) EXPECT_EQ(program.graph.nodes[n].op, graph.nodes[n].op);
}

}  // namespace
}  // namespace partita
