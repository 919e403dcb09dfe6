// What the planner prices as divided by the tensor axis is what the compiler divides, for every size of the axis.
#include "partitioner/shard/tensor_split.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "ir/recipe/read_recipe.h"
#include "partitioner/shard/plan_shardings.h"
#include "passes/pipeline.h"
#include "tools/flow/model_source.h"

namespace partita {
namespace {

// The names of parameters and frozen weights that `ranks` of a tensor axis split, where `parts` share a run's samples.
std::set<std::string> compiled(const Graph& graph, Recipe recipe, int64_t ranks, int64_t parts, int64_t samples) {
  recipe.batch.global = samples;
  Layout layout;
  layout.tensor = ranks, layout.data = parts;
  auto batch = plan_batch(graph, recipe, layout);
  EXPECT_TRUE(batch.ok()) << batch.status();
  std::vector<std::string> warnings;
  auto planned = plan_shardings(graph, recipe, layout, *batch, warnings);
  EXPECT_TRUE(planned.ok()) << planned.status();
  std::set<std::string> split;
  for (size_t k = 0; k < planned->graph.states.size(); ++k) {
    const State& s = planned->graph.states[k];
    if (s.kind != StateKind::kParameter && s.kind != StateKind::kFrozen) continue;
    if (planned->plan.states[k]->compute.is_split()) split.insert(s.name);
  }
  return split;
}

std::set<std::string> priced(const Graph& graph, int64_t parts) {
  const TensorSplit split(graph, parts);
  std::set<std::string> names;
  for (const State& s : graph.states) {
    if ((s.kind == StateKind::kParameter || s.kind == StateKind::kFrozen) && split.divides(s.value))
      names.insert(s.name);
  }
  return names;
}

class PricedSplit : public testing::TestWithParam<std::string> {};

TEST_P(PricedSplit, IsTheCompiledOne) {
  const std::string& folder = GetParam();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  auto recipe = load_recipe(folder + "/train.yaml");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  recipe->evaluate.reset();
  ModelSource source(folder, *recipe);
  auto model = source.import(/*batch=*/8);
  ASSERT_TRUE(model.ok()) << model.status();
  const PassContext context{.recipe = *recipe, .training = (*model)->training.value_or(TrainingSpec{})};
  PassRun run = PassRun::unchecked();
  auto graph = run_passes(graph_passes(PassUse::kTraining), (*model)->graph, context, run);
  ASSERT_TRUE(graph.ok()) << graph.status();
  auto samples = samples_of_run(*graph);
  ASSERT_TRUE(samples.ok()) << samples.status();
  for (int64_t parts : {int64_t{1}, *samples}) {  // a run at once, and sample by sample
    const std::set<std::string> split = priced(*graph, parts);
    EXPECT_FALSE(split.empty());
    for (int64_t ranks : {2, 4, 8})
      EXPECT_EQ(compiled(*graph, *recipe, ranks, parts, *samples), split) << ranks << " ranks, " << parts << " parts";
  }
}

const std::string kModels = PARTITA_MODELS;

INSTANTIATE_TEST_SUITE_P(Models, PricedSplit,
                         testing::Values(std::string(PARTITA_TEST_DATA "/gpt2"), kModels + "/gpt2", kModels + "/llama",
                                         kModels + "/moe", kModels + "/mixtral", kModels + "/bert", kModels + "/resnet",
                                         kModels + "/vit", kModels + "/mlp"),
                         [](const auto& info) {
                           const std::filesystem::path path = info.param;
                           return path.filename().string() +
                                  (path.parent_path().filename() == "data" ? "_of_tests" : "");
                         });

}  // namespace
}  // namespace partita
