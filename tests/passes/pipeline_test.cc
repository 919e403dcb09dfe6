#include "passes/pipeline.h"

#include <filesystem>

#include "passes/forward/choose_attention.h"
#include "tests/passes/support/spelling.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

Graph small_graph() {
  Builder b;
  ValueId x = f64_input(b, "x", {3});
  b.output("y", b.mul(x, b.emit("sigmoid", {b.scale(x, 1)})));
  return std::move(b).finish();
}

constexpr Pass kPasses[] = {
    {"simplify", simplify, "a"}, {"remove_dead_nodes", remove_dead_nodes, "b"}, {"simplify", simplify, "c"}};

TEST(Pipeline_Run, TimesEachPass) {
  PassContext context;
  std::vector<PassTime> times;
  auto g = run_passes(kPasses, small_graph(), context, {.times = &times});
  ASSERT_TRUE(g.ok()) << g.status();
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[2].name, "simplify#2");
  EXPECT_NE(format_pass_times(times).find("simplify#2"), std::string::npos);
}

TEST(Pipeline_StopAfter, NamesAndRepetitions) {
  PassContext context;
  std::vector<PassTime> times;
  ASSERT_TRUE(run_passes(kPasses, small_graph(), context, {.stop_after = "simplify", .times = &times}).ok());
  EXPECT_EQ(times.size(), 1u);
  ASSERT_TRUE(run_passes(kPasses, small_graph(), context, {.stop_after = "simplify#2", .times = &times}).ok());
  EXPECT_EQ(times.size(), 4u);
  auto unknown = run_passes(kPasses, small_graph(), context, {.stop_after = "simplfy"});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().ToString().find("simplify, remove_dead_nodes, simplify#2"), std::string::npos);
}

TEST(Pipeline_Dump, OnlyWhatChanged) {
  TempFolder folder;
  PassContext context;
  std::string dumps = folder.path() + "/ir";
  ASSERT_TRUE(run_passes(kPasses, small_graph(), context, {.dump_folder = dumps}).ok());
  EXPECT_TRUE(std::filesystem::exists(dumps + "/00-start.txt"));
  EXPECT_FALSE(std::filesystem::exists(dumps + "/03-simplify#2.txt"));
}

TEST(ChooseAttention, MathIsProductsAndASoftmax) {
  Builder b;
  ValueId q = f64_input(b, "q", {2, 4, 3, 5}), k = f64_input(b, "k", {2, 2, 3, 5}), v = f64_input(b, "v", {2, 2, 3, 6});
  b.output("y", b.emit_all("attention", {q, k, v}, {{"scale", 0.4}, {"causal", int64_t{1}}})[0]);
  Graph graph = std::move(b).finish();
  PassContext context;
  EXPECT_EQ(count(*choose_attention(graph, context), "attention"), 1);
  context.recipe.attention = AttentionKernel::kMath;
  Graph math = *choose_attention(graph, context);
  EXPECT_EQ(count(math, "attention"), 0);
  EXPECT_EQ(count(math, "matmul"), 2);
  expect_same_values(graph, math);
}

TEST(Pipeline_Tables, NamesAndReasons) {
  for (const Pass& pass : training_pipeline()) {
    EXPECT_FALSE(pass.name.empty());
    EXPECT_FALSE(pass.reason.empty());
    EXPECT_NE(pass.function, nullptr);
  }
  EXPECT_LT(forward_pipeline().size(), training_pipeline().size());
  EXPECT_EQ(forward_pipeline().back().name, "attach_loss");
}

}  // namespace
}  // namespace partita
