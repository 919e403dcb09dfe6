// Which initializers are trained, and what the user is told about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "frontend/onnx_import.h"
#include "ir/graph/evaluate.h"
#include "tests/support/onnx_models.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using testing::Value;

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
                           "/layer/Constant_output_0", "_tensor_constant0", "lifted_tensor_0", "clone_1", "_v_312"})
    EXPECT_THAT(trained(imported(scaled_by(name))), UnorderedElementsAre("w")) << name;
}

constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr const char* kFolded = "pkg.onnxscript.optimizer.folded_from";

template <typename Message>
void add_metadata(Message& of, const char* key, const char* value) {
  onnx::StringStringEntryProto* entry = of.add_metadata_props();
  entry->set_key(key);
  entry->set_value(value);
}

// As torch.onnx.export(dynamo=True) says something of an initializer.
void mark(onnx::ModelProto& m, const char* name, const char* key, const char* value) {
  onnx::ValueInfoProto* info = m.mutable_graph()->add_value_info();
  info->set_name(name);
  add_metadata(*info, key, value);
}

// BART's final_logits_bias, Gemma's embed_scale: nothing but the exporter's word tells them from parameters.
TEST(Parameters, Buffers_OfTheModuleAreNotTrained) {
  onnx::ModelProto m = scaled_by("logit_scale");
  mark(m, "w", kKind, "PARAMETER");
  mark(m, "logit_scale", kKind, "BUFFER");
  const auto trained_with = [&](std::vector<std::string> globs) {
    ImportOptions options;
    options.trainable = std::move(globs);
    return trained(imported(m, options));
  };
  EXPECT_THAT(trained_with({}), UnorderedElementsAre("w"));
  EXPECT_THAT(trained_with({"*"}), UnorderedElementsAre("w"));
  EXPECT_THAT(trained_with({"w", "logit_scale"}), UnorderedElementsAre("w", "logit_scale"));
}

// torch.tensor([...]) in forward(), an attribute of the module, and logit_scale.exp() as its optimizer leaves them.
TEST(Parameters, Constants_OfTheProgramAreNotTrained_AndWhatIsComputedOfParametersIsPointedOut) {
  onnx::ModelProto m = linear_model();
  onnx::GraphProto* g = m.mutable_graph();
  m.set_producer_name("pytorch");
  const std::vector<std::string> names = {"hidden", "view", "val_3"};
  std::string last = "y";
  for (const std::string& name : names) {
    if (name == "val_3") {
      add_floats(g, name, {}, {2});
    } else {
      add_floats(g, name, {2}, {1, 2});
    }
    add_node(g, "Mul", {last, name}, {name + "_y"});
    last = name + "_y";
  }
  g->mutable_output(0)->set_name(last);
  EXPECT_THAT(trained(imported(m)), UnorderedElementsAre("w", "hidden", "view"));
  mark(m, "w", kKind, "PARAMETER");
  mark(m, "hidden", kKind, "CONSTANT_TENSOR");
  mark(m, "view", kFolded, "['clone', 'lifted_tensor_0']");
  mark(m, "val_3", kFolded, "['logit_scale', 'val_2']");
  add_metadata(*g, "pkg.torch.export.ExportedProgram.graph_signature",
               "\n# inputs\np_w: PARAMETER target='w'\np_logit_scale: PARAMETER target='logit_scale'\n"
               "c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'\n");
  const ImportedModel model = imported(m);
  EXPECT_THAT(trained(model), UnorderedElementsAre("w", "val_3"));
  EXPECT_THAT(model.warnings,
              Contains(HasSubstr("computed of parameters and that are trained in their place: 'val_3', of "
                                 "'logit_scale'")));
}

TEST(Parameters, SixteenBits_OfTheFileArePointedOut) {
  for (const auto& [type, warnings] : {std::pair<int, size_t>{onnx::TensorProto::FLOAT16, 1}, {kFloat, 0}}) {
    onnx::ModelProto m = empty_model();
    onnx::GraphProto* g = m.mutable_graph();
    add_value(g->add_input(), "x", {4, 3});
    add_value(g->add_output(), "y", {4, 2});
    add_floats(g, "w", {3, 2}, {});
    g->mutable_initializer(0)->set_data_type(type);
    g->mutable_initializer(0)->set_raw_data(std::string(type == kFloat ? 24 : 12, '\0'));
    add_int(add_node(g, "Cast", {"w"}, {"w32"}), "to", kFloat);
    add_node(g, "MatMul", {"x", "w32"}, {"y"});
    const ImportedModel model = imported(m);
    EXPECT_THAT(trained(model), UnorderedElementsAre("w"));
    EXPECT_THAT(model.warnings, testing::SizeIs(warnings));
    EXPECT_EQ(Value(model.warnings, Contains(HasSubstr("in 16 bits: 'w'"))), warnings == 1);
  }
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
  EXPECT_THAT(model.warnings, Contains(HasSubstr("in their form for inference")));
  ImportOptions by_the_batch;
  by_the_batch.batch_norm_training = true;
  model = imported(m, by_the_batch);
  EXPECT_THAT(trained(model), UnorderedElementsAre("scale", "bias"));
  EXPECT_THAT(model.warnings, Not(Contains(HasSubstr("in their form for inference"))));
  EXPECT_EQ(running(model), 2);
  add_int(g->mutable_node(0), "training_mode", 1);
  for (const char* name : {"next_mean", "next_var"}) g->mutable_node(0)->add_output(name);
  model = imported(m);
  EXPECT_THAT(trained(model), UnorderedElementsAre("scale", "bias"));
  EXPECT_THAT(model.warnings, Not(Contains(HasSubstr("in their form for inference"))));
  EXPECT_EQ(running(model), 2);
}

// torch.onnx.export(dynamo=True) folds them into convolutions and products unless optimize=False is said.
TEST(Parameters, BatchNorm_ThatWasFoldedIsPointedOutAndCannotTrain) {
  const auto refused = [](const onnx::ModelProto& proto) {
    ImportOptions by_the_batch;
    by_the_batch.batch_norm_training = true;
    return import_onnx_model(*parse_onnx_model(proto.SerializeAsString(), "model.onnx"), by_the_batch).status();
  };
  onnx::ModelProto m = linear_model();
  EXPECT_THAT(refused(m).message(), HasSubstr("batch_norm_training: true} in train.yaml: the model has no BatchNorm"));
  m.mutable_graph()->mutable_node(0)->set_name("product");
  add_metadata(*m.mutable_graph()->mutable_node(0), "pkg.onnxscript.rewriter.rule_name", "FuseBatchNormIntoGemm");
  EXPECT_THAT(imported(m).warnings, Contains(AllOf(HasSubstr("multiplied batch norms"), HasSubstr("'product'"))));
  EXPECT_THAT(refused(m).message(), HasSubstr("needs the norms: torch.onnx.export(..., optimize=False)"));
}

// As torch's modules do that are called twice, whether the file has it said of the second node or not.
TEST(Parameters, BatchNorm_StatisticsOfTwoNodesAreMovedByBoth) {
  for (bool chained : {false, true}) {
    onnx::ModelProto m = empty_model();
    onnx::GraphProto* g = m.mutable_graph();
    for (const char* name : {"x", "y"}) add_value(g->add_input(), name, {2, 1});
    add_value(g->add_output(), "z", {2, 1});
    for (const char* name : {"scale", "bias", "mean", "var"}) add_floats(g, name, {1}, {1});
    add_node(g, "BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"x1", "mean1", "var1"});
    const char *mean = chained ? "mean1" : "mean", *var = chained ? "var1" : "var";
    add_node(g, "BatchNormalization", {"y", "scale", "bias", mean, var}, {"y1", "mean2", "var2"});
    add_node(g, "Add", {"x1", "y1"}, {"z"});
    for (int node : {0, 1}) {
      add_int(g->mutable_node(node), "training_mode", 1);
      onnx::AttributeProto* momentum = g->mutable_node(node)->add_attribute();
      momentum->set_name("momentum"), momentum->set_type(onnx::AttributeProto::FLOAT), momentum->set_f(0.5);
    }
    const ImportedModel model = imported(m);
    EXPECT_TRUE(model.warnings.empty()) << testing::PrintToString(model.warnings);
    std::map<ValueId, Tensor> feeds;
    std::vector<ValueId> next;
    for (const GraphInput& input : model.graph.inputs) {
      feeds[input.value] = Tensor::zeros(model.graph.type(input.value));
      feeds[input.value].f = input.name == "x" ? std::vector<double>{2, 6} : std::vector<double>{8, 24};
    }
    for (const State& s : model.graph.states) {
      feeds[s.value] = Tensor::zeros(model.graph.type(s.value));
      feeds[s.value].f = {1};
      if (s.kind == StateKind::kRunning) next.push_back(s.next);
    }
    ASSERT_EQ(next.size(), 2u);
    const std::vector<Tensor> moved = evaluate_graph(model.graph, feeds, next);
    EXPECT_EQ(moved[0].f[0], (1 * 0.5 + 4 * 0.5) * 0.5 + 16 * 0.5);
    EXPECT_EQ(moved[1].f[0], (1 * 0.5 + 4 * 0.5) * 0.5 + 64 * 0.5);
  }
}

// As tf2onnx, jax2onnx and paddle2onnx write the program's numbers.
class OtherExporters : public testing::Test {
 protected:
  OtherExporters() { add_floats(graph_, "w", {3, 3}, {1, 0, 2, 0, 1, 0, 1, 1, 1}); }

  // y = f(x w) by these nodes from "a" to "y".
  ImportedModel with(std::vector<std::pair<std::string, std::vector<std::string>>> nodes, ImportOptions options = {}) {
    add_value(graph_->add_input(), "x", {4, 3});
    add_value(graph_->add_output(), "y", {4, 3});
    add_node(graph_, "MatMul", {"x", "w"}, {"a"});
    for (size_t k = 0; k < nodes.size(); ++k)
      add_node(graph_, nodes[k].first, nodes[k].second,
               {k + 1 == nodes.size() ? "y" : std::string(1, static_cast<char>('b' + k))});
    return imported(model_, options);
  }

  onnx::ModelProto model_ = empty_model();
  onnx::GraphProto* graph_ = model_.mutable_graph();
};

TEST_F(OtherExporters, NumbersOfTheProgramAreConstants) {
  add_floats(graph_, "mul/x:0", {}, {0.5});
  add_floats(graph_, "Pow/y:0", {1}, {3});
  add_floats(graph_, "add/y:0", {1}, {1e-5});
  add_floats(graph_, "low", {1}, {0});
  add_ints(graph_, "pads", {0, 0, 0, 0});
  add_floats(graph_, "padding", {1}, {7});
  const ImportedModel model = with({{"Mul", {"a", "mul/x:0"}},
                                    {"Pow", {"b", "Pow/y:0"}},
                                    {"Add", {"c", "add/y:0"}},
                                    {"Sqrt", {"d"}},
                                    {"Max", {"e", "low"}},
                                    {"Pad", {"f", "pads", "padding"}}});
  EXPECT_THAT(trained(model), UnorderedElementsAre("w"));
  EXPECT_THAT(model.warnings,
              Contains(AllOf(HasSubstr("'mul/x:0', 'Pow/y:0', 'add/y:0', 'low', 'padding'"), HasSubstr("trainable"))));
}

TEST_F(OtherExporters, ParametersOfOneElementAreTrained) {
  add_floats(graph_, "slope", {1}, {0.25});
  add_floats(graph_, "logit_scale", {}, {2});
  add_floats(graph_, "bias", {1}, {0});
  const ImportedModel model =
      with({{"PRelu", {"a", "slope"}}, {"Add", {"b", "bias"}}, {"Exp", {"logit_scale"}}, {"Mul", {"c", "d"}}});
  EXPECT_THAT(trained(model), UnorderedElementsAre("w", "slope", "logit_scale", "bias"));
  EXPECT_TRUE(model.warnings.empty());
}

TEST_F(OtherExporters, AConstantThatIsNamedIsTrained) {
  add_floats(graph_, "gain", {}, {0.5});
  ImportOptions options;
  options.trainable = {"*", "gain"};
  const ImportedModel model = with({{"Mul", {"a", "gain"}}}, options);
  EXPECT_THAT(trained(model), UnorderedElementsAre("w", "gain"));
  EXPECT_TRUE(model.warnings.empty());
}

TEST_F(OtherExporters, OfPyTorchTheyAreParameters) {
  model_.set_producer_name("pytorch");
  add_floats(graph_, "gain", {}, {0.5});
  add_floats(graph_, "p", {1}, {3});  // of generalized mean pooling
  EXPECT_THAT(trained(with({{"Mul", {"a", "gain"}}, {"Pow", {"b", "p"}}})), UnorderedElementsAre("w", "gain", "p"));
}

// Sines and cosines beside each other, in halves, and of rows and of columns of a picture's patches; a learned table.
TEST_F(OtherExporters, SinusoidalPositionsAreConstants) {
  const auto table = [&](const char* name, auto feature) {
    std::vector<float> values;
    for (int row = 0; row < 6; ++row) {
      for (int k = 0; k < 8; ++k) values.push_back(static_cast<float>(feature(row, k)));
    }
    add_floats(graph_, name, {1, 6, 8}, values);
    add_ints(graph_, cat(name, "_shape"), {16, 3});
    add_node(graph_, "Reshape", {name, cat(name, "_shape")}, {cat(name, "_flat")});
    add_node(graph_, "ReduceMean", {cat(name, "_flat")}, {cat(name, "_mean")});
  };
  const auto wave = [](int row, int frequency, bool cosine) {
    const double angle = row * std::pow(0.3, frequency);
    return cosine ? std::cos(angle) : std::sin(angle);
  };
  table("beside", [&](int row, int k) { return wave(row, k / 2, k % 2 == 1); });
  table("halves", [&](int row, int k) { return wave(row, k % 4, k >= 4); });
  table("quarters", [&](int row, int k) { return wave(row, k % 2 + 2 * (k / 4), k % 4 >= 2); });
  table("learned", [&](int row, int k) { return wave(row * row, k / 2, k % 2 == 1); });
  const ImportedModel model = with({{"Add", {"a", "beside_mean"}},
                                    {"Add", {"b", "halves_mean"}},
                                    {"Add", {"c", "quarters_mean"}},
                                    {"Add", {"d", "learned_mean"}}});
  EXPECT_THAT(trained(model), UnorderedElementsAre("w", "learned"));
  EXPECT_THAT(model.warnings, ElementsAre(HasSubstr("'beside', 'halves', 'quarters'")));
  mark(model_, "halves", kKind, "PARAMETER");
  EXPECT_THAT(trained(imported(model_)), UnorderedElementsAre("w", "halves", "learned"));
}

// onnxslim and ONNX Runtime make initializers of Constant nodes (a group norm's scale of ones), and of what they
// compute.
TEST_F(OtherExporters, OfPyTorchNamesOfConstantsTell) {
  for (const char* name : {"/gn/Constant_2_output_0", "/Constant_output_0", "lifted_tensor_0"}) {
    onnx::ModelProto m = linear_model();
    m.set_producer_name("pytorch");
    add_floats(m.mutable_graph(), name, {2}, {1, 2});
    add_node(m.mutable_graph(), "Mul", {"y", name}, {"z"});
    m.mutable_graph()->mutable_output(0)->set_name("z");
    const ImportedModel model = imported(m);
    EXPECT_THAT(trained(model), UnorderedElementsAre("w"));
    EXPECT_THAT(model.warnings, ElementsAre(AllOf(HasSubstr("not trained"), HasSubstr(name))));
  }
  model_.set_producer_name("pytorch");
  add_floats(graph_, "/Exp_output_0", {3}, {1, 2, 3});
  const ImportedModel model = with({{"Mul", {"a", "/Exp_output_0"}}});
  EXPECT_THAT(trained(model), UnorderedElementsAre("w", "/Exp_output_0"));
  EXPECT_THAT(model.warnings, ElementsAre(HasSubstr("names that the exporter made up ('/Exp_output_0')")));
}

// By the older exporter, or without its marks: buffers are initializers like any other.
TEST_F(OtherExporters, OfPyTorchWithoutMarksTheUseTellsWhatPreparesInputs) {
  model_.set_producer_name("pytorch");
  add_floats(graph_, "mean", {1, 3}, {1, 2, 3});
  add_floats(graph_, "std", {1, 3}, {1, 2, 1});
  add_value(graph_->add_input(), "raw", {4, 3});
  add_node(graph_, "Sub", {"raw", "mean"}, {"centered"});
  add_node(graph_, "Div", {"centered", "std"}, {"scaled"});
  const ImportedModel model = with({{"Add", {"a", "scaled"}}});
  EXPECT_THAT(trained(model), UnorderedElementsAre("w"));
  EXPECT_THAT(model.warnings, ElementsAre(HasSubstr("'mean', 'std'")));
  onnx::ModelProto marked = model_;
  mark(marked, "w", kKind, "PARAMETER");
  EXPECT_THAT(trained(imported(marked)), UnorderedElementsAre("w", "mean", "std"));
}

TEST_F(OtherExporters, WhatShiftsAndScalesInputsIsConstant) {
  add_floats(graph_, "mean", {3}, {1, 2, 3});
  add_floats(graph_, "deviation", {3}, {1, 2, 1});
  add_floats(graph_, "divisor", {3}, {1, 2, 1});
  add_value(graph_->add_input(), "raw", {4, 3});
  add_node(graph_, "Sub", {"raw", "mean"}, {"centered"});
  add_node(graph_, "Div", {"centered", "deviation"}, {"scaled"});
  add_floats(graph_, "centers", {4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3});
  const ImportedModel model =
      with({{"Div", {"a", "divisor"}}, {"Add", {"b", "scaled"}}, {"Sub", {"raw", "centers"}}, {"Mul", {"c", "d"}}});
  EXPECT_THAT(trained(model), UnorderedElementsAre("w", "divisor", "centers"));
}

TEST_F(OtherExporters, FirstStatesAreConstants) {
  model_.set_producer_name("pytorch");  // as onnxslim and ONNX Runtime leave its files
  add_floats(graph_, "W", {1, 3, 3}, {1, 0, 2, 0, 1, 0, 1, 1, 1});
  add_floats(graph_, "R", {1, 3, 3}, {1, 0, 0, 0, 1, 0, 0, 0, 1});
  add_floats(graph_, "h0", {1, 4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3});
  add_ints(graph_, "front", {0});
  add_node(graph_, "Unsqueeze", {"x", "front"}, {"steps"});
  add_int(add_node(graph_, "RNN", {"steps", "W", "R", "", "", "h0"}, {"", "last"}), "hidden_size", 3);
  add_node(graph_, "Squeeze", {"last", "front"}, {"h"});
  EXPECT_THAT(trained(with({{"Add", {"a", "h"}}})), UnorderedElementsAre("w", "W", "R"));
}

TEST_F(OtherExporters, WeightsInConstantNodesAreTrainedWhereTheyAreNamed) {
  onnx::TensorProto* value = add_node(graph_, "Constant", {}, {"k"})->add_attribute()->mutable_t();
  graph_->mutable_node(0)->mutable_attribute(0)->set_name("value");
  graph_->mutable_node(0)->mutable_attribute(0)->set_type(onnx::AttributeProto::TENSOR);
  value->set_data_type(kFloat);
  for (int d : {3, 3}) value->add_dims(d);
  for (int k = 0; k < 9; ++k) value->add_float_data(static_cast<float>(k));
  const ImportedModel model = with({{"MatMul", {"a", "k"}}});
  EXPECT_THAT(trained(model), UnorderedElementsAre("w"));
  EXPECT_THAT(model.warnings, Contains(AllOf(HasSubstr("Constant nodes"), HasSubstr("'k'"))));
  ImportOptions options;
  options.trainable = {"*"};
  const ImportedModel all = imported(model_, options);
  EXPECT_THAT(trained(all), UnorderedElementsAre("w", "k"));
  EXPECT_TRUE(all.warnings.empty());
}

TEST_F(OtherExporters, WeightsInConstantNodesOfFunctionsArePointedOut) {
  onnx::OperatorSetIdProto* own = model_.add_opset_import();
  own->set_domain("own"), own->set_version(1);
  onnx::FunctionProto* f = model_.add_functions();
  f->set_name("Dense"), f->set_domain("own");
  f->add_input("in"), f->add_output("out");
  f->add_opset_import()->set_version(18);
  onnx::GraphProto body;
  onnx::AttributeProto* value = add_node(&body, "Constant", {}, {"kernel"})->add_attribute();
  value->set_name("value"), value->set_type(onnx::AttributeProto::TENSOR);
  value->mutable_t()->set_data_type(kFloat);
  for (int d : {3, 3}) value->mutable_t()->add_dims(d);
  for (int k = 0; k < 9; ++k) value->mutable_t()->add_float_data(static_cast<float>(k));
  add_node(&body, "MatMul", {"in", "kernel"}, {"out"});
  *f->mutable_node() = body.node();
  add_node(graph_, "Dense", {"x"}, {"k"})->set_domain("own");
  EXPECT_THAT(with({{"Add", {"a", "k"}}}).warnings,
              ElementsAre(HasSubstr("its functions are not trained: 'Dense/kernel'")));
}

TEST_F(OtherExporters, WeightsOfASubgraphArePointedOut) {
  onnx::NodeProto* branch = add_node(graph_, "If", {"always"}, {"k"});
  for (const char* name : {"then_branch", "else_branch"}) {
    onnx::AttributeProto* a = branch->add_attribute();
    a->set_name(name), a->set_type(onnx::AttributeProto::GRAPH);
    a->mutable_g()->set_name(name);
    add_floats(a->mutable_g(), "inner", {3, 3}, {1, 0, 2, 0, 1, 0, 1, 1, 1});
    add_node(a->mutable_g(), "MatMul", {"x", "inner"}, {"out"});
    add_value(a->mutable_g()->add_output(), "out", {4, 3});
  }
  onnx::TensorProto* always = graph_->add_initializer();
  always->set_name("always"), always->set_data_type(onnx::TensorProto::BOOL), always->add_int32_data(1);
  const ImportedModel model = with({{"Add", {"a", "k"}}});
  EXPECT_THAT(trained(model), UnorderedElementsAre("w"));
  EXPECT_THAT(model.warnings, ElementsAre(AllOf(HasSubstr("loop's body"), HasSubstr("'inner'"))));
}

TEST_F(OtherExporters, InnerValuesCanBeOutputs) {
  ImportOptions options;
  options.outputs = {"b", "y", "nothing", "x", "w"};
  std::vector<std::string> names;
  for (const GraphOutput& out : with({{"Relu", {"a"}}, {"Softmax", {"b"}}}, options).graph.outputs)
    names.push_back(out.name);
  EXPECT_THAT(names, ElementsAre("y", "b"));
}

TEST_F(OtherExporters, BatchNormsOfOldOpsetsForInferenceArePointedOut) {
  model_ = empty_model(9);
  graph_ = model_.mutable_graph();
  add_floats(graph_, "w", {3, 3}, {1, 0, 2, 0, 1, 0, 1, 1, 1});
  for (const char* name : {"scale", "bias", "mean", "var"}) add_floats(graph_, name, {3}, {1, 1, 1});
  EXPECT_THAT(with({{"BatchNormalization", {"a", "scale", "bias", "mean", "var"}}}).warnings,
              Contains(HasSubstr("in their form for inference")));
}

}  // namespace
}  // namespace partita
