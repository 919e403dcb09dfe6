// What is priced of products in the update is what localize() makes of them.
#include "partitioner/planner/workload/update_work.h"

#include <gtest/gtest.h>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "partitioner/audit/count_collectives.h"
#include "partitioner/localize/localize.h"
#include "passes/training/build_optimizer.h"

namespace partita {
namespace {

// One parameter, whose gradient is an input.
Graph update_of(const Shape& shape, OptimizerKind kind) {
  Builder b;
  const TensorType type{DType::kF32, shape};
  ValueId g = b.input("g", type);
  ValueId w = b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, type);
  b.output("loss", b.reduce_sum(b.mul(w, g), {0, 1}, false));
  b.output("grad/w", g);
  PassContext context;
  context.recipe.optimizer = default_optimizer(kind);
  return *build_optimizer(std::move(b).finish(), context);
}

Sharding split(const Shape& shape, int dim) {
  Sharding s = Sharding::replicated(shape);
  s.dims[static_cast<size_t>(dim)] = {{shape[static_cast<size_t>(dim)], {0}}};
  return s;
}

LocalProgram on_two_ranks(const Graph& graph, const Shape& shape, int dim) {
  ShardingPlan plan;
  plan.mesh.axes = {{"data", 2}};
  plan.inputs = {split(shape, dim)};
  for (const State& s : graph.states) {
    const Shape& own = graph.type(s.value).shape;
    const Sharding lies = own == shape ? split(shape, dim) : Sharding::replicated(own);
    plan.states.push_back(StateLayout{lies, lies});
  }
  return *localize(graph, plan);
}

// Those that move more than single numbers.
UpdateMoves counted(const LocalProgram& program) {
  UpdateMoves moves;
  for (const CountedCollective& c : count_collectives(program)) {
    const double bytes = static_cast<double>(c.elements) * sizeof(float);
    if (c.elements <= 1) continue;
    if (c.kind == CollectiveOp::kAllReduce) ++moves.summed[bytes];
    if (c.kind == CollectiveOp::kAllGather) ++moves.gathered[2 * bytes];
    if (c.kind == CollectiveOp::kAllToAll || c.kind == CollectiveOp::kReduceScatter) ++moves.gathered[bytes];
  }
  return moves;
}

TEST(UpdateWork_Muon, IsWhatIsLocalized) {
  for (const Shape& shape : {Shape{8, 8}, {4, 16}, {16, 4}}) {
    const Graph graph = update_of(shape, OptimizerKind::kMuon);
    const UpdateProducts products(graph);
    for (int dim : {0, 1}) {
      SCOPED_TRACE(cat(shape[0], " x ", shape[1], ", dimension ", dim));
      const UpdateWork work = products.work(graph.states[0].value, {-1, dim});
      const LocalProgram program = on_two_ranks(graph, shape, dim);
      const UpdateMoves found = counted(program);
      EXPECT_EQ(work.moves[1].gathered, found.gathered);
      EXPECT_EQ(work.moves[1].summed, found.summed);
      EXPECT_FALSE(found.gathered.empty() && found.summed.empty());
      double priced = 0, localized = 0;
      for (const UpdateProduct& p : work.products) priced += p.count * p.m * p.n * p.k / (p.divided[1] ? 2 : 1);
      for (const Node& node : program.graph.nodes) {
        if (node.op->work == WorkKind::kMatrix)
          localized += static_cast<double>(points(bound_formula(program.graph, node)));
      }
      EXPECT_EQ(priced, localized);
    }
  }
}

TEST(UpdateWork_AdamW, HasNone) {
  const Graph graph = update_of({8, 8}, OptimizerKind::kAdamW);
  EXPECT_FALSE(UpdateProducts(graph).multiplies(graph.states[0].value));
}

}  // namespace
}  // namespace partita
