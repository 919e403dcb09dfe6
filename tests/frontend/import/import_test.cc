// Every exported model imports; the small ones, run by the reference evaluator, give PyTorch's first loss; the large
// ones import within time and memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <set>

#include "frontend/onnx_import.h"
#include "ir/graph/evaluate.h"
#include "ir/recipe/read_recipe.h"
#include "runtime/files/npz.h"

namespace partita {
namespace {

namespace fs = std::filesystem;

std::string models() { return PARTITA_MODELS; }

ImportedModel import_or_die(const std::string& name, ImportOptions options) {
  auto model = import_onnx(models() + "/" + name, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *std::move(model) : ImportedModel{};
}

Tensor to_wide(const runtime::NpyArray& array) {
  return to_tensor({{array.dtype, array.shape}, array.owner, array.bytes.data()});
}

// Samples [from, from + n) of an array.
Tensor samples(const Tensor& all, int64_t from, int64_t n) {
  Tensor out{all.type, {}, {}};
  out.type.shape[0] = n;
  int64_t row = elements(all.type.shape) / all.type.shape[0];
  if (is_float(all.type.dtype))
    out.f.assign(all.f.begin() + from * row, all.f.begin() + (from + n) * row);
  else
    out.i.assign(all.i.begin() + from * row, all.i.begin() + (from + n) * row);
  return out;
}

double cross_entropy(const Tensor& logits, const Tensor& target, int64_t ignore) {
  int64_t classes = logits.type.shape.back(), rows = static_cast<int64_t>(logits.f.size()) / classes;
  double total = 0, count = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (target.i[r] == ignore) continue;
    double largest = -INFINITY, sum = 0;
    for (int64_t k = 0; k < classes; ++k) largest = std::max(largest, logits.f[r * classes + k]);
    for (int64_t k = 0; k < classes; ++k) sum += std::exp(logits.f[r * classes + k] - largest);
    total += std::log(sum) + largest - logits.f[r * classes + target.i[r]];
    ++count;
  }
  return total / count;
}

struct Reference {
  Recipe recipe;
  std::map<std::string, Tensor> data;
  double loss = 0;
};

Reference reference(const std::string& name) {
  std::string folder = models() + "/" + name;
  Reference r;
  auto recipe = load_recipe(folder + "/train.yaml");
  EXPECT_TRUE(recipe.ok()) << recipe.status().message();
  r.recipe = *recipe;
  auto data = runtime::NpzFile::open(folder + "/data.npz"), expected = runtime::NpzFile::open(folder + "/expected.npz");
  for (const std::string& array : data->names()) r.data[array] = to_wide(*data->read(array));
  r.loss = to_wide(*expected->read("loss_f64")).f[0];
  return r;
}

ImportOptions options_of(const Recipe& recipe) {
  return {.bind = recipe.bind, .trainable = recipe.trainable, .frozen = recipe.frozen};
}

// The loss of step 0 by the reference evaluator: the mean over the slices of the global batch that the graph takes.
double first_loss(const ImportedModel& model, const Reference& r) {
  const Graph& g = model.graph;
  int64_t global = *r.recipe.batch.global, batch = g.type(g.inputs[0].value).shape[0];
  double total = 0;
  for (int64_t from = 0; from < global; from += batch) {
    std::map<ValueId, Tensor> feeds;
    for (const GraphInput& in : g.inputs) {
      feeds[in.value] = samples(r.data.at(in.name), from, batch);
      feeds[in.value].type.dtype = g.type(in.value).dtype;
    }
    std::vector<Tensor> out = evaluate_graph(g, feeds);
    if (out[0].type.rank() == 0)
      total += out[0].f[0];
    else
      total += cross_entropy(out[0], samples(r.data.at("target"), from, batch), -100);
  }
  return total / (static_cast<double>(global) / static_cast<double>(batch));
}

std::vector<std::string> names_of(const Graph& g, StateKind kind) {
  std::vector<std::string> names;
  for (const State& s : g.states) {
    if (s.kind == kind) names.push_back(s.name);
  }
  return names;
}

class SmallModel : public testing::TestWithParam<const char*> {};

TEST_P(SmallModel, Import_GivesPyTorchsFirstLoss) {
  if (!fs::exists(models() + "/" + GetParam())) GTEST_SKIP() << "no model " << GetParam();
  Reference r = reference(GetParam());
  ImportedModel model = import_or_die(GetParam(), options_of(r.recipe));
  ASSERT_FALSE(model.graph.outputs.empty());
  EXPECT_NEAR(first_loss(model, r), r.loss, 1e-6 * std::max(1.0, std::abs(r.loss)));
  for (const Node& node : model.graph.nodes) EXPECT_GE(node.origin, 0) << node.op->name;
}

// What PyTorch trained is what the importer takes for parameters.
TEST_P(SmallModel, Import_FindsTheParameters) {
  if (!fs::exists(models() + "/" + GetParam())) GTEST_SKIP() << "no model " << GetParam();
  Reference r = reference(GetParam());
  auto expected = runtime::NpzFile::open(models() + "/" + GetParam() + "/expected.npz");
  std::vector<std::string> trained;
  for (const std::string& array : expected->names()) {
    if (array.starts_with("grad/")) trained.push_back(array.substr(5));
  }
  EXPECT_THAT(names_of(import_or_die(GetParam(), options_of(r.recipe)).graph, StateKind::kParameter),
              testing::UnorderedElementsAreArray(trained));
  ImportOptions unaided = options_of(r.recipe);
  unaided.frozen.clear();
  EXPECT_THAT(names_of(import_or_die(GetParam(), unaided).graph, StateKind::kParameter),
              testing::UnorderedElementsAreArray(trained))
      << "without the recipe's list";
}

INSTANTIATE_TEST_SUITE_P(Models, SmallModel,
                         testing::Values("bert", "gpt2", "gpt2_legacy", "llama", "llama_opset23", "mixtral", "mlp",
                                         "moe", "ort_mlp", "ort_transformer", "resnet", "training_info_adagrad",
                                         "training_info_adam", "training_info_momentum", "vit"),
                         [](const auto& info) { return std::string(info.param); });

class LargeModel : public testing::TestWithParam<const char*> {};

TEST_P(LargeModel, Import_NeedsNoWeightsAndLittleTime) {
  std::string path = models() + "/full/" + GetParam();
  if (!fs::exists(path)) GTEST_SKIP() << "no model " << GetParam();
  auto recipe = load_recipe(path + "/train.yaml");
  ASSERT_TRUE(recipe.ok()) << recipe.status().message();
  auto start = std::chrono::steady_clock::now();
  ImportedModel model = import_or_die(std::string("full/") + GetParam(), options_of(*recipe));
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 10);  // 2 on an idle machine; tests share theirs
  EXPECT_LT(mallinfo2().uordblks, size_t{500} << 20);
  EXPECT_THAT(names_of(model.graph, StateKind::kParameter),
              testing::AllOf(testing::SizeIs(testing::Gt(0u)),
                             testing::Not(testing::Contains(testing::HasSubstr("inv_freq")))));
  for (const State& s : model.graph.states) {
    bool loaded = std::holds_alternative<Literal>(s.initial) && elements(model.graph.type(s.value).shape) > 4096;
    EXPECT_FALSE(s.kind == StateKind::kParameter && loaded) << s.name;
  }
  std::printf("%s: %.2f s, %zu nodes, %lld parameters, %zu MB\n", GetParam(), seconds, model.graph.nodes.size(),
              static_cast<long long>(model.info.trained_elements), mallinfo2().uordblks >> 20);
}

INSTANTIATE_TEST_SUITE_P(Models, LargeModel,
                         testing::Values("gpt2_xl", "llama31_405b", "llama3_70b", "llama3_8b", "mixtral_8x7b",
                                         "moe_8x7b_capacity", "resnet50", "vit_h14"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Import, UnboundBatch_SaysHowToBindIt) {
  if (!fs::exists(models() + "/mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  auto model = import_onnx(models() + "/mlp");
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.status().message(),
              testing::HasSubstr("input 'x': dimension 0 is symbolic: give its size, as in bind: {batch: 8}"));
}

TEST(Import, BatchOption_GivesSymbolicFirstDimensions) {
  if (!fs::exists(models() + "/mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  ImportedModel model = import_or_die("mlp", {.batch = 3});
  EXPECT_EQ(model.graph.type(model.graph.outputs[0].value).shape, (Shape{3, 10}));
}

TEST(Import, TrainableAndFrozen_DecideParameters) {
  if (!fs::exists(models() + "/mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  ImportedModel some = import_or_die("mlp", {.batch = 2, .trainable = {"fc1.*", "fc2.*"}, .frozen = {"*.bias"}});
  EXPECT_THAT(names_of(some.graph, StateKind::kParameter), testing::ElementsAre("fc1.weight", "fc2.weight"));
}

TEST(Import, Names_RenameStates) {
  if (!fs::exists(models() + "/mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  ImportedModel model = import_or_die("mlp", {.batch = 2, .names = {{"fc1.weight", "first"}}});
  EXPECT_THAT(names_of(model.graph, StateKind::kParameter), testing::Contains("first"));
}

TEST(Import, BatchNormalization_HasRunningStatistics) {
  if (!fs::exists(models() + "/resnet")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  Reference r = reference("resnet");
  ImportedModel model = import_or_die("resnet", options_of(r.recipe));
  EXPECT_EQ(names_of(model.graph, StateKind::kRunning).size(), 40u);
  for (const State& s : model.graph.states) {
    EXPECT_EQ(s.kind == StateKind::kRunning, s.next != kNoValue) << s.name;
  }
}

}  // namespace
}  // namespace partita
