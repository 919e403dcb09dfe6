// adamw_8bit on ranks that have parts of a weight, borders within blocks of 256 elements included: the bits that one
// rank has, and what travels for it.
#include "passes/training/block_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/cat.h"
#include "ir/graph/evaluate.h"
#include "partitioner/audit/count_collectives.h"
#include "partitioner/localize/localize.h"
#include "passes/training/build_optimizer.h"
#include "tests/partitioner/support/spmd.h"

namespace partita {
namespace {

// One parameter, whose gradient is an input.
Graph update_of(const Shape& shape) {
  Builder b;
  const TensorType type{DType::kF64, shape};
  ValueId g = b.input("g", type);
  ValueId w = b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, type);
  std::vector<int64_t> dims;
  for (int d = 0; d < b.rank(w); ++d) dims.push_back(d);
  b.output("loss", b.reduce_sum(b.mul(w, g), dims, false));
  b.output("grad/w", g);
  PassContext context;
  context.recipe.optimizer = default_optimizer(OptimizerKind::kAdamW8bit);
  return *build_optimizer(std::move(b).finish(), context);
}

Sharding split(const Shape& shape, size_t dim) {
  Sharding s = Sharding::replicated(shape);
  s.dims[dim] = {{shape[dim], {0}}};
  return s;
}

LocalProgram localized(const Graph& graph, const Shape& shape, size_t dim, int64_t ranks) {
  ShardingPlan plan;
  plan.mesh.axes = {{"data", ranks}};
  plan.inputs = {split(shape, dim)};
  for (const State& s : graph.states) {
    const Shape& own = graph.type(s.value).shape;
    const Sharding lies = own == shape ? split(shape, dim) : Sharding::replicated(own);
    plan.states.push_back(StateLayout{lies, lies});
  }
  return *localize(graph, plan);
}

// Elements that each rank has of what travels, in gathers and in extrema; but for the loss and the norm.
std::pair<int64_t, int64_t> moved(const LocalProgram& program) {
  std::pair<int64_t, int64_t> sum;
  for (const CountedCollective& c : count_collectives(program)) {
    if (c.elements > 1) (c.kind == CollectiveOp::kAllReduce ? sum.second : sum.first) += c.elements;
  }
  return sum;
}

struct BlocksCase {
  Shape shape;
  size_t dim;
  int64_t ranks;
  int64_t gathered, reduced;  // of both moments, by each rank
};

class BlockCodes : public testing::TestWithParam<BlocksCase> {};
INSTANTIATE_TEST_SUITE_P(Borders, BlockCodes,
                         testing::Values(BlocksCase{{8, 768}, 0, 2, 24, 0},    // whole blocks
                                         BlocksCase{{8, 768}, 1, 2, 192, 0},   // a block and a half of each row
                                         BlocksCase{{128, 32}, 0, 2, 16, 0},   // 8 rows a block
                                         BlocksCase{{128, 32}, 0, 32, 8, 0},   // half a block
                                         BlocksCase{{64, 64}, 1, 2, 0, 32},    // half of each of a block's 4 rows
                                         BlocksCase{{60, 70}, 0, 4, 1050, 0},  // the last block is not full
                                         BlocksCase{{60, 70}, 1, 5, 840, 0}, BlocksCase{{8192}, 0, 4, 16, 0}));

TEST_P(BlockCodes, AreThoseOfOneRank) {
  const BlocksCase& c = GetParam();
  SCOPED_TRACE(cat(to_string(c.shape), " dimension ", c.dim, " on ", c.ranks));
  const Graph graph = update_of(c.shape);
  const LocalProgram program = localized(graph, c.shape, c.dim, c.ranks);
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  const TensorType type{DType::kF64, c.shape};
  Tensors one;
  for (const State& s : graph.states) one[s.name] = Tensor::zeros(graph.type(s.value));
  for (double& x : one["w"].f) x = normal(random);
  Tensors many = one;
  for (int step = 0; step < 2; ++step) {
    Tensor g = Tensor::zeros(type);
    for (size_t k = 0; k < g.f.size(); ++k) g.f[k] = normal(random) * std::pow(10, -static_cast<double>(k % 5));
    std::map<ValueId, Tensor> feeds = {{graph.inputs[0].value, g}};
    for (const State& s : graph.states) feeds[s.value] = one.at(s.name);
    Graph steps = graph;
    steps.outputs.clear();
    for (const State& s : graph.states) steps.outputs.push_back({s.name, s.next});
    const std::vector<Tensor> next = evaluate_graph(steps, feeds);
    for (size_t k = 0; k < graph.states.size(); ++k) one[graph.states[k].name] = next[k];
    many = run_spmd(program, {{"g", g}}, many).states;
  }
  for (const State& s : graph.states) {
    EXPECT_EQ(many.at(s.name).f, one.at(s.name).f) << s.name;
    EXPECT_EQ(many.at(s.name).i, one.at(s.name).i) << s.name;
  }
  EXPECT_EQ(moved(program), std::pair(c.gathered, c.reduced));
}

}  // namespace
}  // namespace partita
