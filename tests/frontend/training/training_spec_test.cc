// Training that the file itself states: training_info and ONNX Runtime artifacts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "frontend/onnx_import.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::string model_path(const std::string& name) { return std::string(PARTITA_MODELS) + "/" + name; }

ImportedModel import_or_die(const std::string& name) {
  auto model = import_onnx(model_path(name));
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *std::move(model) : ImportedModel{};
}

TEST(TrainingInfo, Adam_IsReadToTheLetter) {
  if (!fs::exists(model_path("training_info_adam"))) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  ImportedModel m = import_or_die("training_info_adam");
  ASSERT_TRUE(m.training);
  EXPECT_EQ(m.training->loss, "loss");
  EXPECT_EQ(m.graph.outputs[0].name, "loss");
  EXPECT_THAT(m.training->parameters, ElementsAre("W1", "b1", "g1", "h1", "W2", "b2"));
  EXPECT_EQ(m.training->step_name, "T");
  ASSERT_EQ(m.training->groups.size(), 1u);
  const OptimizerGroup& g = m.training->groups[0];
  EXPECT_EQ(g.kind, "onnx_adam");
  EXPECT_FLOAT_EQ(g.hyper.at("alpha"), 0.9);
  EXPECT_FLOAT_EQ(g.hyper.at("beta"), 0.98);
  EXPECT_FLOAT_EQ(g.hyper.at("epsilon"), 1e-6);
  EXPECT_FLOAT_EQ(g.hyper.at("norm_coefficient"), 1e-3);
  EXPECT_FLOAT_EQ(g.hyper.at("norm_coefficient_post"), 1e-4);
  EXPECT_FLOAT_EQ(*g.learning_rate, 0.01);
  EXPECT_EQ(g.initial_step, 0);
  EXPECT_TRUE(g.step_counts);
  EXPECT_THAT(g.state_names[0], ElementsAre("W1_V", "W1_H"));
  ASSERT_TRUE(g.state_initials[0][1]);
  EXPECT_EQ(g.state_initials[0][1]->type.shape, (Shape{20, 48}));
}

TEST(TrainingInfo, Adagrad_TakesTheInitializationGraph) {
  if (!fs::exists(model_path("training_info_adagrad"))) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  ImportedModel m = import_or_die("training_info_adagrad");
  ASSERT_TRUE(m.training);
  EXPECT_EQ(m.training->groups[0].kind, "onnx_adagrad");
  EXPECT_FLOAT_EQ(m.training->groups[0].hyper.at("decay_factor"), 0.1);
  for (const State& s : m.graph.states) {
    if (s.name != "W2") continue;
    EXPECT_FLOAT_EQ(element_f(std::get<Literal>(s.initial), 0), -0.03972679749131203);
  }
}

TEST(TrainingInfo, Momentum_HasTwoGroups) {
  if (!fs::exists(model_path("training_info_momentum"))) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  ImportedModel m = import_or_die("training_info_momentum");
  ASSERT_TRUE(m.training);
  ASSERT_EQ(m.training->groups.size(), 2u);
  EXPECT_THAT(m.training->groups[0].parameters, ElementsAre("K1", "c1", "K2"));
  EXPECT_EQ(m.training->groups[0].hyper.at("nesterov"), 1);
  EXPECT_EQ(m.training->groups[1].hyper.at("nesterov"), 0);
  EXPECT_FLOAT_EQ(m.training->groups[1].hyper.at("beta"), 0.9);
}

TEST(OrtArtifacts, Folder_IsForwardPartWeightsAndOptimizer) {
  if (!fs::exists(model_path("ort_transformer"))) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  ImportedModel m = import_or_die("ort_transformer");
  ASSERT_TRUE(m.training);
  EXPECT_EQ(m.training->source, "onnxruntime");
  EXPECT_EQ(m.training->loss, "onnx::loss::8");
  ASSERT_EQ(m.graph.inputs.size(), 2u);
  EXPECT_EQ(m.graph.inputs[0].name, "x");
  EXPECT_EQ(m.training->parameters.size(), 38u);
  const OptimizerGroup& g = m.training->groups[0];
  EXPECT_EQ(g.kind, "ort_adamw");
  EXPECT_EQ(g.hyper.at("adam_mode"), 1);
  EXPECT_FLOAT_EQ(g.hyper.at("weight_decay"), 0.01);
  EXPECT_FALSE(g.learning_rate);
  EXPECT_THAT(g.state_names[0], ElementsAre(g.parameters[0] + ".momentum0", g.parameters[0] + ".momentum1"));
}

// The checkpoint cut anywhere or with flipped bits is refused or read, without a crash.
TEST(OrtArtifacts, DamagedCheckpoint_IsRefused) {
  if (!fs::exists(model_path("ort_mlp"))) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  TempFolder folder;
  for (const char* file : {"training_model.onnx", "optimizer_model.onnx"})
    fs::copy(model_path("ort_mlp") + "/" + file, folder / file);
  std::string good = TempFolder::read(model_path("ort_mlp") + "/checkpoint");
  for (size_t n : {size_t{0}, size_t{3}, size_t{8}, size_t{40}, size_t{500}, good.size() / 2}) {
    folder.write("checkpoint", good.substr(0, n));
    auto model = import_onnx(folder.path());
    ASSERT_FALSE(model.ok()) << n;
    EXPECT_THAT(model.status().message(), HasSubstr("checkpoint"));
  }
  std::mt19937 random(2);
  for (int k = 0; k < 200; ++k) {
    std::string bytes = good;
    for (int j = 0; j < 4; ++j) {
      size_t at = k % 2 == 0 ? random() % 600 : random() % bytes.size();
      bytes[at] ^= static_cast<char>(1 << (random() % 8));
    }
    folder.write("checkpoint", bytes);
    (void)import_onnx(folder.path());
  }
}

}  // namespace
}  // namespace partita
