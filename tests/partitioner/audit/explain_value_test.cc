#include "partitioner/audit/explain_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/builder.h"
#include "partitioner/shard/shard.h"

namespace partita {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two products with an activation between, and a mean over the features: forward alone.
Graph mlp() {
  Builder g;
  auto parameter = [&](const char* name, Shape shape) {
    return g.state({.name = name, .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                   {DType::kF32, std::move(shape)});
  };
  auto named = [&](ValueId v, const char* name) { return g.name(v, name), v; };
  ValueId x = g.input("x", {DType::kF32, {64, 256}});
  ValueId up = named(g.matmul(x, parameter("up", {256, 1024})), "hidden");
  ValueId act = named(g.emit("relu", {up}), "activated");
  ValueId down = named(g.matmul(act, parameter("down", {1024, 256})), "summed");
  g.output("loss", named(g.mean(down, {0, 1}, false), "mean"));
  return std::move(g).finish();
}

class ExplainValue : public ::testing::Test {
 protected:
  std::string explained(std::string_view name) {
    std::vector<std::string> warnings;
    BatchPlan batch{.graph_batch = 64, .batch_ranks = layout_.data};
    auto planned = shard(mlp(), recipe_, layout_, batch, warnings);
    EXPECT_TRUE(planned.ok()) << planned.status();
    auto text = explain_value(*planned, layout_, recipe_.pin, name);
    return text.ok() ? *text : std::string(text.status().message());
  }

  Layout layout_{.data = 2, .tensor = 4};
  Recipe recipe_;
};

TEST_F(ExplainValue, ParameterIsSplitByWhatTheChooserTook) {
  EXPECT_THAT(explained("up"), AllOf(HasSubstr("lies as [256, 1024@tensor]; a rank has f32[256,256]"),
                                     HasSubstr("data (2)\n    all ranks along it have the same"),
                                     HasSubstr("dimension 1: chosen, because it divides"),
                                     HasSubstr("at most 1024 ranks can divide it")));
}

TEST_F(ExplainValue, ActivationIsFollowedBackToBothOfItsChoices) {
  EXPECT_THAT(explained("activated"),
              AllOf(HasSubstr("lies as [64@data, 1024@tensor]; a rank has f32[32,256]"),
                    HasSubstr("dimension 0 of what relu of relu makes is dimension 0 of 'hidden'"),
                    HasSubstr("begins at input 'x' f32[64,256], dimension 0: ranks along data take different samples"),
                    HasSubstr("dimension 1 of what matmul of matmul makes is dimension 1 of 'up'"),
                    HasSubstr("begins at parameter 'up' f32[256,1024], dimension 1: chosen")));
}

TEST_F(ExplainValue, SumOverTheAxisEndsIt) {
  EXPECT_THAT(explained("summed"), HasSubstr("tensor (4)\n    matmul of matmul sums over dimension 1 of 'activated': "
                                             "partial sums of the ranks are added up (all-reduce)"));
  EXPECT_THAT(explained("mean"), HasSubstr("the nearest upstream: matmul of matmul sums over dimension 1"));
}

TEST_F(ExplainValue, PinAndStorageAreNamed) {
  recipe_.pin.values.push_back({"up", {{"out", {}}}});
  layout_.zero = 3;
  EXPECT_THAT(explained("up"),
              AllOf(HasSubstr("tensor (4)\n    all ranks along it have the same: pinned by 'up'"),
                    HasSubstr("stored as [256@data, 1024] between steps (ZeRO)"), Not(HasSubstr("chosen"))));
}

TEST_F(ExplainValue, UnknownNameOffersTheNearest) {
  EXPECT_THAT(explained("activate"), AllOf(HasSubstr("'activate'"), HasSubstr("the nearest is 'activated'")));
}

}  // namespace
}  // namespace partita
