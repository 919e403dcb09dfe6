// Which initializers are trained, and what the user is told about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontend/onnx_import.h"
#include "tests/onnx_models.h"

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

ImportedModel imported(const onnx::ModelProto& proto) {
  auto model = parse_onnx_model(proto.SerializeAsString(), "model.onnx");
  EXPECT_TRUE(model.ok()) << model.status();
  auto result = import_onnx_model(*model);
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
  add_int(g->mutable_node(0), "training_mode", 1);
  for (const char* name : {"next_mean", "next_var"}) g->mutable_node(0)->add_output(name);
  model = imported(m);
  EXPECT_THAT(trained(model), UnorderedElementsAre("scale", "bias"));
  EXPECT_THAT(model.warnings, Not(Contains(HasSubstr("training_mode 0"))));
}

}  // namespace
}  // namespace partita
