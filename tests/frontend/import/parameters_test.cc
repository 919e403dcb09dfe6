// Which initializers are trained, and what the user is told about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "frontend/onnx_import.h"
#include "tests/support/onnx_models.h"

namespace partita {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

std::vector<std::string> trained(const ImportedModel& model) {
  std::vector<std::string> names;
  for (const State& s : model.graph.states) {
    if (s.kind == StateKind::kParameter) names.push_back(s.name);
  }
  return names;
}

int64_t running(const ImportedModel& model) {
  return std::count_if(model.graph.states.begin(), model.graph.states.end(),
                       [](const State& s) { return s.kind == StateKind::kRunning && s.next != kNoValue; });
}

ImportedModel imported(const onnx::ModelProto& proto, const ImportOptions& options = {}) {
  auto model = parse_onnx_model(proto.SerializeAsString(), "model.onnx");
  EXPECT_TRUE(model.ok()) << model.status();
  auto result = import_onnx_model(*model, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : ImportedModel{};
}

// x [4,3] w times scalar `name`.
onnx::ModelProto scaled_by(const std::string& name) {
  onnx::ModelProto m = linear_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_floats(g, name, {}, {2.5});
  add_node(g, "Exp", {name}, {"e"});
  add_node(g, "Mul", {"y", "e"}, {"z"});
  g->mutable_output(0)->set_name("z");
  return m;
}

TEST(Parameters, Scalars_WithNamesOfTheirOwnAreTrained) {
  for (const char* name : {"logit_scale", "temperature", "model.scale", "norm.eps_2"})
    EXPECT_THAT(trained(imported(scaled_by(name))), UnorderedElementsAre("w", name));
}

TEST(Parameters, Scalars_ThatTheExporterNumberedAreConstants) {
  for (const char* name : {"val_12", "scalar_tensor_default", "scalar_tensor_default_3", "onnx::Mul_7", "17",
                           "/layer/Constant_output_0", "_tensor_constant0", "lifted_tensor_0", "clone_1"})
    EXPECT_THAT(trained(imported(scaled_by(name))), UnorderedElementsAre("w")) << name;
}

// BART's final_logits_bias, Gemma's embed_scale: nothing but the exporter's word tells them from parameters.
TEST(Parameters, Buffers_OfTheModuleAreNotTrained) {
  onnx::ModelProto m = scaled_by("logit_scale");
  const auto mark = [&](const char* name, const char* kind) {
    onnx::ValueInfoProto* info = m.mutable_graph()->add_value_info();
    info->set_name(name);
    onnx::StringStringEntryProto* entry = info->add_metadata_props();
    entry->set_key("pkg.torch.export.graph_signature.InputSpec.kind");
    entry->set_value(kind);
  };
  mark("w", "PARAMETER");
  mark("logit_scale", "BUFFER");
  const auto trained_with = [&](std::vector<std::string> globs) {
    ImportOptions options;
    options.trainable = std::move(globs);
    return trained(imported(m, options));
  };
  EXPECT_THAT(trained_with({}), UnorderedElementsAre("w"));
  EXPECT_THAT(trained_with({"*"}), UnorderedElementsAre("w"));
  EXPECT_THAT(trained_with({"w", "logit_scale"}), UnorderedElementsAre("w", "logit_scale"));
}

TEST(Parameters, BatchNorm_OfAnInferenceExportIsPointedOut) {
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {4, 2, 3});
  add_value(g->add_output(), "y", {4, 2, 3});
  for (const char* name : {"scale", "bias", "mean", "var"}) add_floats(g, name, {2}, {1, 1});
  add_node(g, "BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"y"});
  ImportedModel model = imported(m);
  EXPECT_THAT(trained(model), UnorderedElementsAre("scale", "bias"));
  EXPECT_THAT(model.warnings, Contains(HasSubstr("training_mode 0")));
  ImportOptions by_the_batch;
  by_the_batch.batch_norm_training = true;
  model = imported(m, by_the_batch);
  EXPECT_THAT(trained(model), UnorderedElementsAre("scale", "bias"));
  EXPECT_THAT(model.warnings, Not(Contains(HasSubstr("training_mode 0"))));
  EXPECT_EQ(running(model), 2);
  add_int(g->mutable_node(0), "training_mode", 1);
  for (const char* name : {"next_mean", "next_var"}) g->mutable_node(0)->add_output(name);
  model = imported(m);
  EXPECT_THAT(trained(model), UnorderedElementsAre("scale", "bias"));
  EXPECT_THAT(model.warnings, Not(Contains(HasSubstr("training_mode 0"))));
  EXPECT_EQ(running(model), 2);
}

}  // namespace
}  // namespace partita
