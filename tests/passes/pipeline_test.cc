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

constexpr std::string_view kNames[] = {"simplify", "remove_dead_nodes", "simplify"};

TEST(Pipeline_Run, TimesEachPass) {
  PassContext context;
  PassRun run;
  auto g = run_passes(kPasses, small_graph(), context, run);
  ASSERT_TRUE(g.ok()) << g.status();
  ASSERT_EQ(run.times().size(), 3u);
  EXPECT_EQ(run.times()[2].name, "simplify#2");
  EXPECT_NE(format_pass_times(run.times()).find("simplify#2"), std::string::npos);
  EXPECT_FALSE(run.stopped());
}

TEST(Pipeline_StopAfter, NamesAndRepetitions) {
  PassContext context;
  for (const auto& [name, passes] : {std::pair("simplify", 1u), std::pair("simplify#2", 3u)}) {
    auto run = PassRun::create({.stop_after = name}, kNames);
    ASSERT_TRUE(run.ok()) << run.status();
    ASSERT_TRUE(run_passes(kPasses, small_graph(), context, *run).ok());
    EXPECT_EQ(run->times().size(), passes);
    EXPECT_TRUE(run->stopped());
    ASSERT_TRUE(run_passes(kPasses, small_graph(), context, *run).ok());  // the next table
    EXPECT_EQ(run->times().size(), passes);
  }
  auto unknown = PassRun::create({.stop_after = "simplfy"}, kNames);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().ToString().find("simplify, remove_dead_nodes, simplify#2"), std::string::npos);
}

TEST(Pipeline_Dump, OnlyWhatChanged) {
  TempFolder folder;
  PassContext context;
  std::string dumps = folder.path() + "/ir";
  auto run = PassRun::create({.dump_folder = dumps}, kNames);
  ASSERT_TRUE(run.ok()) << run.status();
  const Graph graph = small_graph();
  ASSERT_TRUE(run->start(graphs_of(graph)).ok());
  ASSERT_TRUE(run_passes(kPasses, graph, context, *run).ok());
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

// An unsound graph is told by the pass that left it.
TEST(Pipeline_Verify, NamesThePass) {
  constexpr Pass kBreaks[] = {{"simplify", simplify, "a"},
                              {"break",
                               [](const Graph& graph, const PassContext&) -> absl::StatusOr<Graph> {
                                 Graph broken = graph;
                                 broken.outputs[0].value = static_cast<ValueId>(broken.values.size());
                                 return broken;
                               },
                               "b"}};
  PassContext context;
  PassRun run;
  const auto broken = run_passes(kBreaks, small_graph(), context, run);
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(broken.status().ToString().find("after pass break"), std::string::npos) << broken.status();
}

TEST(Pipeline_Tables, NamesAndReasons) {
  for (PassUse use : {PassUse::kTraining, PassUse::kEvaluation}) {
    for (const Pass& pass : graph_passes(use)) {
      EXPECT_FALSE(pass.name.empty());
      EXPECT_FALSE(pass.reason.empty());
      EXPECT_NE(pass.function, nullptr);
    }
  }
}

}  // namespace
}  // namespace partita
