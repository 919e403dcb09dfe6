// Every generator's model imports, has the parameters of its formula, and with written weights gives the loss of a
// model that knows nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/cat.h"
#include "frontend/generate/bert.h"
#include "frontend/generate/gpt.h"
#include "frontend/generate/mlp.h"
#include "frontend/generate/resnet.h"
#include "frontend/generate/vit.h"
#include "frontend/onnx_import.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Generate : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              cat("partita-generate-", getpid(), "-", testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Writes and imports a model, and checks that its parameters are those that were asked for.
  ImportedModel import(absl::StatusOr<GraphWriter> model, int64_t parameters,
                       std::optional<int64_t> seed = std::nullopt, std::optional<int64_t> batch = std::nullopt) {
    EXPECT_TRUE(model.ok()) << model.status().message();
    if (!model.ok()) return {};
    EXPECT_EQ(model->parameters(), parameters);
    std::string file = path("model.onnx");
    fs::remove(file + ".weights");
    absl::Status written = write_generated(*model, file, seed);
    EXPECT_TRUE(written.ok()) << written.message();
    auto imported = import_onnx(file, {.batch = batch});
    EXPECT_TRUE(imported.ok()) << imported.status().message();
    if (!imported.ok()) return {};
    int64_t trained = 0;
    for (const State& s : imported->graph.states) {
      if (s.kind == StateKind::kParameter) trained += elements(imported->graph.type(s.value).shape);
    }
    EXPECT_EQ(trained, parameters);
    EXPECT_THAT(imported->warnings, testing::IsEmpty());
    return *std::move(imported);
  }

  // The first output on inputs of small integers (a mask of ones), or of sines.
  static Tensor run(const ImportedModel& model, int64_t vocab) {
    std::map<ValueId, Tensor> feeds;
    for (const GraphInput& in : model.graph.inputs) {
      Tensor t{model.graph.type(in.value), {}, {}};
      for (int64_t k = 0; k < elements(t.type.shape); ++k) {
        if (is_float(t.type.dtype))
          t.f.push_back(std::sin(static_cast<double>(k)));
        else
          t.i.push_back(in.name == "attention_mask" ? 1 : in.name == "token_type_ids" ? k % 2 : k * 7 % vocab);
      }
      feeds[in.value] = std::move(t);
    }
    return evaluate_graph(model.graph, feeds)[0];
  }

  fs::path folder_;
};

GptSpec small_gpt() { return {.layers = 2, .hidden = 16, .heads = 4, .vocab = 61, .sequence = 12, .batch = 2}; }

// Independent of the generator: matrices, biases and norms counted by hand.
int64_t gpt_parameters(const GptSpec& s, int64_t kv, int64_t ffn) {
  int64_t h = s.hidden, wide = kv * h / s.heads, b = s.bias ? 1 : 0;
  int64_t norm = s.norm == GptSpec::Norm::kRmsNorm ? h : h + b * h;
  int64_t attention = h * h + 2 * wide * h + h * h + b * (h + 2 * wide + h);
  int64_t mlp = (s.gated_mlp ? 3 : 2) * h * ffn + b * ((s.gated_mlp ? 2 : 1) * ffn + h);
  if (s.moe) mlp = h * s.moe->experts + s.moe->experts * ((s.gated_mlp ? 3 : 2) * h * s.moe->ffn + b * s.moe->ffn);
  return s.vocab * h * (s.tied ? 1 : 2) + (s.positions == GptSpec::Positions::kLearned ? s.sequence * h : 0) +
         s.layers * (2 * norm + attention + mlp) + norm;
}

TEST_F(Generate, Gpt2_ImportsAndKnowsNothing) {
  GptSpec s = small_gpt();
  ImportedModel model = import(generate_gpt(s), gpt_parameters(s, 4, 64), 1);
  ASSERT_EQ(model.graph.outputs.size(), 1u);
  EXPECT_EQ(model.graph.outputs[0].name, "loss");
  EXPECT_NEAR(run(model, s.vocab).f[0], std::log(61.0), 0.1);
}

TEST_F(Generate, Llama_ImportsWithGroupedQueries) {
  GptSpec s = small_gpt();
  s.kv_heads = 2;
  s.ffn = 24;
  s.gated_mlp = true;
  s.bias = s.tied = false;
  s.norm = GptSpec::Norm::kRmsNorm;
  s.positions = GptSpec::Positions::kRotary;
  ImportedModel model = import(generate_gpt(s), gpt_parameters(s, 2, 24), 1);
  EXPECT_NEAR(run(model, s.vocab).f[0], std::log(61.0), 0.1);
}

TEST_F(Generate, Gpt_EveryCombinationImports) {
  for (int bits = 0; bits < 16; ++bits) {
    for (auto positions : {GptSpec::Positions::kLearned, GptSpec::Positions::kRotary, GptSpec::Positions::kNone}) {
      GptSpec s = small_gpt();
      s.layers = 1;
      s.ffn = 20;
      s.batch = kBatchSymbol;
      s.gated_mlp = bits & 1, s.bias = bits & 2, s.tied = bits & 4;
      s.norm = bits & 8 ? GptSpec::Norm::kRmsNorm : GptSpec::Norm::kLayerNorm;
      s.positions = positions;
      ImportedModel model = import(generate_gpt(s), gpt_parameters(s, 4, 20), std::nullopt, 3);
      ASSERT_EQ(model.graph.type(model.graph.inputs[0].value).shape, (Shape{3, 12}));
    }
  }
}

// Labels are shifted inside: the last one has no logits that foretell it, the first none either.
TEST_F(Generate, Gpt_ShiftsLabels) {
  GptSpec s = small_gpt();
  ImportedModel model = import(generate_gpt(s), gpt_parameters(s, 4, 64), 1);
  auto loss = [&](int64_t changed) {
    std::map<ValueId, Tensor> feeds;
    for (const GraphInput& in : model.graph.inputs) {
      Tensor t{model.graph.type(in.value), {}, {}};
      for (int64_t k = 0; k < 24; ++k) t.i.push_back(k % 60);
      if (in.name == "labels" && changed >= 0) t.i[changed] = 60;
      feeds[in.value] = std::move(t);
    }
    return evaluate_graph(model.graph, feeds)[0].f[0];
  };
  EXPECT_EQ(loss(0), loss(-1));
  EXPECT_NE(loss(1), loss(-1));
  EXPECT_NE(loss(11), loss(-1));
}

TEST_F(Generate, Moe_ImportsWithBothKindsOfBatch) {
  GptSpec s = small_gpt();
  s.moe = MoeSpec{.experts = 4, .top_k = 2, .ffn = 24};
  int64_t parameters = gpt_parameters(s, 4, 64);
  ImportedModel baked = import(generate_gpt(s), parameters, 1);
  Tensor loss = run(baked, s.vocab);
  EXPECT_NEAR(loss.f[0], std::log(61.0) + 0.02, 0.1);
  s.batch = kBatchSymbol;
  ImportedModel symbolic = import(generate_gpt(s), parameters, 1, 2);
  EXPECT_EQ(run(symbolic, s.vocab).f[0], loss.f[0]);
  s.moe->top_k = 1, s.gated_mlp = true, s.bias = false;
  EXPECT_NEAR(run(import(generate_gpt(s), gpt_parameters(s, 4, 64), 1, 2), s.vocab).f[0], std::log(61.0) + 0.02, 0.1);
}

TEST_F(Generate, Bert_Imports) {
  BertSpec s{.layers = 2, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 61, .sequence = 12, .batch = 2};
  int64_t h = 16, layer = 4 * (h * h + h) + 2 * h * 40 + 40 + h + 4 * h;
  ImportedModel model = import(generate_bert(s), (61 + 2 + 12) * h + 2 * h + 2 * layer + h * h + h + 2 * h + 61, 1);
  EXPECT_NEAR(run(model, 61).f[0], std::log(61.0), 0.2);
}

TEST_F(Generate, Vit_Imports) {
  VitSpec s{.layers = 2, .hidden = 16, .heads = 4, .patch = 4, .image = 16, .classes = 10};
  int64_t h = 16, layer = 12 * h * h + 9 * h + 4 * h;
  ImportedModel model = import(generate_vit(s), h + 3 * 16 * h + h + 17 * h + 2 * layer + 2 * h + 10 * h + 10, 1, 3);
  Tensor logits = run(model, 1);
  EXPECT_EQ(logits.type.shape, (Shape{3, 10}));
  for (double v : logits.f) EXPECT_TRUE(std::isfinite(v));
}

// The numbers that torchvision publishes.
TEST_F(Generate, PublishedModels_HaveTheirParameters) {
  EXPECT_EQ(generate_resnet({.depth = 18})->parameters(), 11689512);
  EXPECT_EQ(generate_resnet({.depth = 34})->parameters(), 21797672);
  EXPECT_EQ(generate_resnet({.depth = 50})->parameters(), 25557032);
  EXPECT_EQ(generate_vit({})->parameters(), 86567656);
  EXPECT_EQ(generate_gpt({})->parameters(), 124439808);  // GPT-2
  GptSpec llama{.layers = 32,
                .hidden = 4096,
                .heads = 32,
                .kv_heads = 8,
                .ffn = 14336,
                .vocab = 128256,
                .sequence = 8192,
                .gated_mlp = true,
                .bias = false,
                .tied = false};
  llama.norm = GptSpec::Norm::kRmsNorm;
  llama.positions = GptSpec::Positions::kRotary;
  EXPECT_EQ(generate_gpt(llama)->parameters(), 8030261248);  // Llama 3 8B
  EXPECT_EQ(generate_bert({})->parameters(), 109514298);     // bert-base-uncased with its language-modelling head
}

TEST_F(Generate, Resnet_Imports) {
  for (int64_t depth : {18, 34, 50}) {
    ResnetSpec s{.depth = depth, .classes = 10, .image = 32};
    auto model = generate_resnet(s);
    ASSERT_TRUE(model.ok());
    int64_t parameters = model->parameters();
    ImportedModel imported = import(std::move(model), parameters, std::nullopt, 2);
    EXPECT_EQ(imported.graph.type(imported.graph.outputs[0].value).shape, (Shape{2, 10}));
  }
}

TEST_F(Generate, Mlp_Imports) {
  ImportedModel model = import(generate_mlp({.sizes = {20, 16, 8, 4}}), 20 * 16 + 16 + 16 * 8 + 8 + 8 * 4 + 4, 1, 5);
  EXPECT_EQ(run(model, 1).type.shape, (Shape{5, 4}));
}

TEST_F(Generate, Gpt175B_IsWrittenWithinASecond) {
  GptSpec s{.layers = 96, .hidden = 12288, .heads = 96, .sequence = 2048};
  std::clock_t start = std::clock();  // of this process, so that a busy machine does not count
  auto model = generate_gpt(s);
  ASSERT_TRUE(model.ok());
  ASSERT_TRUE(write_generated(*model, path("gpt.onnx"), std::nullopt).ok());
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 1);
  EXPECT_EQ(model->parameters(), gpt_parameters(s, 96, 4 * 12288));
  EXPECT_LT(fs::file_size(path("gpt.onnx")), 4u << 20);
  EXPECT_FALSE(fs::exists(path("gpt.onnx.weights")));
  auto imported = import_onnx(path("gpt.onnx"), {.batch = 1});
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(imported->info.trained_elements, model->parameters());
}

TEST_F(Generate, Moe1T_Imports) {
  GptSpec s{.layers = 61, .hidden = 7168, .heads = 56, .vocab = 129280, .sequence = 4096, .batch = 1};
  s.moe = MoeSpec{.experts = 256, .top_k = 8, .ffn = 4608};
  auto model = generate_gpt(s);
  ASSERT_TRUE(model.ok());
  EXPECT_GT(model->parameters(), 1'000'000'000'000);
  ASSERT_TRUE(write_generated(*model, path("moe.onnx"), std::nullopt).ok());
  auto imported = import_onnx(path("moe.onnx"));
  EXPECT_TRUE(imported.ok()) << imported.status().message();
}

TEST_F(Generate, Bytes_DependOnSizesAndSeedAlone) {
  auto write = [&](const std::string& name, int64_t seed) {
    auto model = generate_gpt(small_gpt());
    fs::create_directories(path(name));
    EXPECT_TRUE(write_generated(*model, path(name + "/m.onnx"), seed).ok());
    EXPECT_EQ(static_cast<int64_t>(fs::file_size(path(name + "/m.onnx.weights"))), model->weight_bytes());
  };
  write("a", 1), write("b", 1), write("c", 2);
  EXPECT_EQ(content(path("a/m.onnx")), content(path("b/m.onnx")));
  EXPECT_EQ(content(path("a/m.onnx")), content(path("c/m.onnx")));
  EXPECT_EQ(content(path("a/m.onnx.weights")), content(path("b/m.onnx.weights")));
  EXPECT_NE(content(path("a/m.onnx.weights")), content(path("c/m.onnx.weights")));
}

TEST_F(Generate, Weights_HaveTheDeviationAsked) {
  GraphWriter g("g");
  g.weight("w", {100, 100});
  g.weight("scale", {3}, Fill::ones());
  ASSERT_TRUE(write_generated(g, path("g.onnx"), 7).ok());
  std::string bytes = content(path("g.onnx.weights"));
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  ASSERT_EQ(values.size(), 10003u);
  double sum = 0, squares = 0;
  for (int k = 0; k < 10000; ++k) sum += values[k], squares += values[k] * values[k];
  EXPECT_NEAR(sum / 10000, 0, 1e-3);
  EXPECT_NEAR(std::sqrt(squares / 10000), 0.02, 1e-3);
  EXPECT_EQ(values[10002], 1);
}

TEST_F(Generate, OldWeights_AreNotTakenForNewOnes) {
  auto model = generate_mlp({});
  ASSERT_TRUE(write_generated(*model, path("m.onnx"), 1).ok());
  absl::Status again = write_generated(*model, path("m.onnx"), std::nullopt);
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("delete it, add --with-weights"));
}

TEST_F(Generate, BadSizes_SayWhatIsWrong) {
  auto gpt = [](auto change) {
    GptSpec s = small_gpt();
    change(s);
    auto model = generate_gpt(s);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(model.status().message());
  };
  EXPECT_EQ(gpt([](GptSpec& s) { s.heads = 5; }), "--heads 5 does not divide --hidden 16");
  EXPECT_EQ(gpt([](GptSpec& s) { s.kv_heads = 3; }), "--kv-heads 3 does not divide --heads 4");
  EXPECT_EQ(gpt([](GptSpec& s) { s.layers = 0; }), "--layers: expected an integer from 1 to 10000, found 0");
  EXPECT_EQ(gpt([](GptSpec& s) { s.batch = -7; }), "--batch: expected an integer from 1 to 1099511627776, found -7");
  EXPECT_THAT(gpt([](GptSpec& s) { s.hidden = s.heads = 16, s.positions = GptSpec::Positions::kRotary; }),
              HasSubstr("even size"));
  EXPECT_THAT(gpt([](GptSpec& s) { s.sequence = int64_t{1} << 40; }), HasSubstr("too large"));
  EXPECT_THAT(gpt([](GptSpec& s) { s.hidden = kMaxHidden; }), HasSubstr("too large"));
  EXPECT_THAT(gpt([](GptSpec& s) { s.moe = MoeSpec{.experts = 4, .top_k = 5}; }),
              HasSubstr("--top-k 5 is more than --experts 4"));
  EXPECT_THAT(gpt([](GptSpec& s) { s.layers = 10000, s.moe = MoeSpec{.experts = 64, .top_k = 64}; }),
              HasSubstr("nodes: ask for fewer layers"));
  EXPECT_EQ(generate_resnet({.depth = 101}).status().message(), "--depth: expected 18, 34 or 50, found 101");
  EXPECT_EQ(generate_vit({.patch = 15}).status().message(), "--patch 15 does not divide --image 224");
  EXPECT_EQ(generate_bert({.heads = 7}).status().message(), "--heads 7 does not divide --hidden 768");
  EXPECT_THAT(std::string(generate_mlp({.sizes = {5}}).status().message()), HasSubstr("expected 2 to 10001 sizes"));
  EXPECT_EQ(generate_mlp({.sizes = {}}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace partita
