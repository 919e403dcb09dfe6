// Meshes of stages as one: axes split where the stages' own begin and end.
#include "partitioner/shard/join_plans.h"

#include <gtest/gtest.h>

namespace partita {
namespace {

// The plan of one input of 8 samples that all axes but the stages' split.
ShardingPlan plan_on(std::vector<MeshAxis> axes, std::vector<int> split) {
  ShardingPlan plan;
  plan.mesh.axes = std::move(axes);
  plan.inputs = {Sharding{{{{8, std::move(split)}}}, {}}};
  return plan;
}

TEST(OnOneMesh_AxesThatDiffer, AreCutWhereTheStagesOwnEnd) {
  std::vector<ShardingPlan> plans = on_one_mesh(
      {plan_on({{"pipeline", 2}, {"data", 4}}, {1}), plan_on({{"pipeline", 2}, {"data", 2}, {"tensor", 2}}, {1})});
  EXPECT_EQ(plans[0].mesh.axes, (std::vector<MeshAxis>{{"pipeline", 2}, {"data", 2}, {"data/tensor", 2}}));
  EXPECT_EQ(plans[1].mesh, plans[0].mesh);
  EXPECT_EQ(plans[0].inputs[0].dims[0][0].axes, (std::vector<int>{1, 2}));
  EXPECT_EQ(plans[1].inputs[0].dims[0][0].axes, (std::vector<int>{1}));
}

TEST(OnOneMesh_AxesOfOneSize, StayWhole) {
  std::vector<ShardingPlan> plans =
      on_one_mesh({plan_on({{"pipeline", 2}, {"data", 12}}, {1}), plan_on({{"pipeline", 2}, {"tensor", 12}}, {})});
  EXPECT_EQ(plans[0].mesh.axes, (std::vector<MeshAxis>{{"pipeline", 2}, {"data/tensor", 12}}));
  EXPECT_EQ(plans[0].inputs[0].dims[0][0].axes, std::vector<int>{1});
}

// What a stage has no use for is absent there, and its ranks are numbered after those of the stages before.
TEST(OnOneMesh_StagesOfDifferentSizes, LackAxes) {
  std::vector<ShardingPlan> plans =
      on_one_mesh({plan_on({{"pipeline", 3}, {"data", 4}}, {1}), plan_on({{"pipeline", 3}, {"data", 2}}, {1}),
                   plan_on({{"pipeline", 3}}, {})});
  const Mesh& mesh = plans[0].mesh;
  EXPECT_EQ(mesh.axes, (std::vector<MeshAxis>{{"pipeline", 3}, {"data", 2, {2}}, {"data:1", 2, {1, 2}}}));
  EXPECT_EQ(mesh.ranks(), 7);
  EXPECT_EQ(mesh.coordinates(3), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(mesh.coordinates(5), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(mesh.coordinates(6), (std::vector<int64_t>{2, 0, 0}));
  EXPECT_EQ(mesh.differing(0, 1), std::vector<int>{2});
  EXPECT_EQ(mesh.irregular(), (std::vector<int>{1, 2}));
}

// 2 x 3 and 3 x 2: factors meet in another order.
TEST(OnOneMesh_FactorsInAnotherOrder, AreTheSameRanks) {
  std::vector<ShardingPlan> plans = on_one_mesh({plan_on({{"pipeline", 2}, {"data", 2}, {"tensor", 3}}, {1}),
                                                 plan_on({{"pipeline", 2}, {"data", 3}, {"tensor", 2}}, {1})});
  EXPECT_EQ(plans[0].mesh.ranks(), 12);
  EXPECT_EQ(plans[0].mesh.ways(plans[0].inputs[0].dims[0][0].axes), 2);
  EXPECT_EQ(plans[1].mesh.ways(plans[1].inputs[0].dims[0][0].axes), 3);
  EXPECT_NE(plans[0].mesh.axes[1].name, plans[0].mesh.axes[2].name);
}

}  // namespace
}  // namespace partita
