// Bad models, recipes and data through the command line: each ends with its exit code and one readable message, within
// time and memory, and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/cat.h"
#include "base/quote.h"
#include "runtime/files/npz.h"
#include "tests/support/command.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Matcher;

const char kRecipe[] =
    "loss: {kind: mse, output: y, target: target}\noptimizer: {kind: sgd, lr: 0.1}\nbatch: {global: 4}\n";

class BadModels : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(out_);
    write_data("data.npz", 8, {});
    in_.write("train.yaml", kRecipe);
    in_.write("model.onnx", linear_model().SerializeAsString());
  }

  void write_data(const std::string& name, int64_t samples, std::vector<std::pair<size_t, float>> changes) {
    std::vector<float> x(static_cast<size_t>(3 * samples), 0.5f), target(static_cast<size_t>(2 * samples), 1.0f);
    for (auto [at, value] : changes) x[at] = value;
    ASSERT_TRUE(
        runtime::write_npz(in_ / name, {{"x", DType::kF32, {samples, 3}, std::as_bytes(std::span(x))},
                                        {"target", DType::kF32, {samples, 2}, std::as_bytes(std::span(target))}})
            .ok());
  }

  Outcome train(const std::string& before = "") {
    return run_command(before + partita_program() + " train " + in_ / model_ + " --train " + in_ / recipe_ +
                       " --data " + in_ / data_ + " --steps 2 --quiet --save " + out_ +
                       "/p.safetensors --save-gradients " + out_ + "/g.safetensors");
  }

  // Trains, and expects `code` and one message that fits.
  void expect_refused(const Matcher<const std::string&>& message, const Matcher<int>& code = testing::Eq(2),
                      const std::string& before = "") {
    Outcome o = train(before);
    EXPECT_THAT(o.code, code) << o.text;
    EXPECT_THAT(o.text, message);
    EXPECT_TRUE(o.text.starts_with("partita: ") || o.text.find("\npartita: ") != std::string::npos) << o.text;
    size_t said = 0;
    for (size_t at = 0; (at = o.text.find("partita: ", at)) != std::string::npos; ++at)
      said += at == 0 || o.text[at - 1] == '\n';
    EXPECT_EQ(said, 1u) << o.text;
    EXPECT_LT(o.text.size(), 3000u) << o.text;
    EXPECT_TRUE(is_utf8(o.text)) << quote(o.text, 2000);
    for (char c : o.text) EXPECT_FALSE(c >= 0 && c < 32 && c != '\n') << quote(o.text, 2000);
    EXPECT_LT(o.seconds, 60) << o.text;
    EXPECT_LT(o.peak_bytes, int64_t{2} << 30) << o.text;
    EXPECT_TRUE(std::filesystem::is_empty(out_)) << o.text;
  }

  void refused_model(const onnx::ModelProto& model, const Matcher<const std::string&>& message,
                     const Matcher<int>& code = testing::Eq(2)) {
    in_.write("model.onnx", model.SerializeAsString());
    expect_refused(AllOf(HasSubstr("model.onnx"), message), code);
  }
  void refused_bytes(std::string_view bytes, const Matcher<const std::string&>& message) {
    in_.write("model.onnx", bytes);
    expect_refused(AllOf(HasSubstr("model.onnx"), message));
  }
  void refused_recipe(const std::string& text, const Matcher<const std::string&>& message) {
    in_.write("train.yaml", text);
    expect_refused(message);
  }

  TempFolder in_, outside_;
  std::string out_ = outside_ / "out", model_ = "model.onnx", recipe_ = "train.yaml", data_ = "data.npz";
};

TEST_F(BadModels, SoundOne_Trains) {
  Outcome o = train();
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_FALSE(std::filesystem::is_empty(out_));
}

TEST_F(BadModels, Bytes) {
  std::string sound = linear_model().SerializeAsString();
  refused_bytes("", HasSubstr("empty"));
  refused_bytes("Hello, this is no model.\n", HasSubstr("text file"));
  refused_bytes(std::string(4096, '\0'), HasSubstr("not an ONNX model"));
  refused_bytes(std::string(4096, '\xff'), HasSubstr("not an ONNX model"));
  refused_bytes(sound.substr(0, sound.size() / 2), HasSubstr("model"));
  // A graph that claims 2 GB, and messages in messages in messages.
  refused_bytes(std::string("\x3a\xff\xff\xff\xff\x07", 6) + sound, HasSubstr("not an ONNX model"));
  std::string deep;
  for (int k = 0; k < 20000; ++k) deep = "\x32" + std::string(1, '\x7f') + deep.substr(0, 127);
  refused_bytes("\x3a\x7f" + deep, HasSubstr("not an ONNX model"));
  std::filesystem::remove(in_ / "model.onnx");
  expect_refused(HasSubstr("model.onnx"));
  std::filesystem::create_directory(in_ / "model.onnx");
  expect_refused(HasSubstr("model.onnx"));
  std::filesystem::remove(in_ / "model.onnx");
  ASSERT_EQ(mkfifo((in_ / "model.onnx").c_str(), 0600), 0);
  expect_refused(HasSubstr("not a regular file"));
}

TEST_F(BadModels, GraphsAndNames) {
  auto spoiled = [&](const std::function<void(onnx::ModelProto&, onnx::GraphProto*)>& spoil, const char* message) {
    onnx::ModelProto m = linear_model();
    spoil(m, m.mutable_graph());
    refused_model(m, HasSubstr(message));
  };
  spoiled([](auto&, auto* g) { g->mutable_node(0)->set_input(0, "y"); }, "cycle");
  spoiled([](auto&, auto* g) { g->mutable_node(0)->set_input(0, "nowhere"); }, "'nowhere' is not defined");
  spoiled([](auto&, auto* g) { add_node(g, "Relu", {"x"}, {"y"}, "again"); }, "'y' is made twice");
  spoiled([](auto&, auto* g) { add_floats(g, "w", {1}, {1}); }, "two initializers are named 'w'");
  spoiled([](auto&, auto* g) { add_value(g->add_input(), "x", {4, 3}); }, "two graph inputs are named 'x'");
  spoiled([](auto&, auto* g) { g->mutable_output(0)->set_name("absent"); }, "'absent' is made by no node");
  spoiled([](auto&, auto* g) { g->clear_output(); }, "no outputs");
  spoiled([](auto&, auto* g) { g->mutable_node(0)->set_op_type("MatMull"); }, "no operator 'MatMull'");
  spoiled([](auto&, auto* g) { g->mutable_node(0)->set_domain("acme"); }, "'acme' is not imported");
  spoiled([](auto& m, auto*) { m.mutable_opset_import(0)->set_version(99); }, "newer");
  spoiled([](auto& m, auto*) { m.mutable_opset_import(0)->set_version(1); }, "older");
  spoiled([](auto& m, auto*) { m.set_ir_version(99); }, "IR version 99");
  spoiled([](auto& m, auto*) { m.clear_opset_import(); }, "imports no operator set");
  spoiled([](auto& m, auto*) { m.clear_graph(); }, "");
  spoiled([](auto&, auto* g) { g->mutable_input(0)->mutable_type()->clear_value(); }, "'x' is not a tensor");
  spoiled([](auto&, auto* g) { g->mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape(); },
          "has no shape");
  spoiled(
      [](auto&, auto* g) {
        auto* d = g->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(1);
        d->set_dim_param("features");
      },
      "bind: {features: 8}");
  spoiled(
      [](auto&, auto* g) {
        auto* d = g->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
        d->mutable_dim(0)->set_dim_value(int64_t{1} << 40);
        d->mutable_dim(1)->set_dim_value(int64_t{1} << 40);
      },
      "too large");
  spoiled([](auto&, auto* g) { g->mutable_initializer(0)->set_dims(1, 5); }, "elements");
  spoiled([](auto&, auto* g) { g->mutable_initializer(0)->set_dims(1, -2); }, "negative");
  spoiled([](auto&, auto* g) { g->mutable_initializer(0)->set_data_type(onnx::TensorProto::STRING); }, "STRING");
  for (const std::string& name :
       {std::string("\x1b[2J\x1b[31mred\x07"), std::string("\xff\xfe\xc3"), std::string("a\nb\rc\0d", 7)}) {
    onnx::ModelProto m = linear_model();
    m.mutable_graph()->mutable_node(0)->set_name(name);
    m.mutable_graph()->mutable_node(0)->set_input(0, name);
    refused_model(m, HasSubstr("is not defined"));
  }
}

TEST_F(BadModels, TypesShapesAndAttributes) {
  auto with_node = [&](const std::string& op, std::vector<std::string> in, const char* message,
                       const std::function<void(onnx::NodeProto*)>& attributes = {}) {
    onnx::ModelProto m = linear_model();
    onnx::GraphProto* g = m.mutable_graph();
    add_ints(g, "ints", {1, 2});
    add_floats(g, "seven", {7}, std::vector<float>(7, 1));
    auto* n = add_node(g, op, std::move(in), {"t"}, "bad");
    if (attributes) attributes(n);
    g->mutable_output(0)->set_name("t");
    refused_model(m, AllOf(HasSubstr("'bad'"), HasSubstr(message)));
  };
  with_node("Add", {"y", "ints"}, "i64");
  with_node("Add", {"y", "seven"}, "[7]");
  with_node("MatMul", {"y", "seven"}, "");
  with_node("Conv", {"y", "w"}, "");
  with_node("Gemm", {"seven", "w"}, "");
  with_node("Softmax", {"y"}, "axis 9", [](auto* n) { add_int(n, "axis", 9); });
  with_node("Transpose", {"y"}, "", [](auto* n) {
    auto* a = n->add_attribute();
    a->set_name("perm");
    a->set_type(onnx::AttributeProto::INTS);
    a->add_ints(0);
    a->add_ints(0);
  });
  with_node("Cast", {"y"}, "'to' is missing");
  with_node("Softmax", {"y"}, "expected INT, found STRING", [](auto* n) {
    auto* a = n->add_attribute();
    a->set_name("axis");
    a->set_type(onnx::AttributeProto::STRING);
    a->set_s("last");
  });
  with_node("Relu", {"y", "y"}, "inputs");
  with_node("Reshape", {"y", "ints"}, "reshape");
}

TEST_F(BadModels, ExternalData) {
  auto external = [&](const std::string& location, const std::string& offset, const std::string& length,
                      const char* message) {
    onnx::ModelProto m = linear_model();
    auto* t = m.mutable_graph()->mutable_initializer(0);
    t->clear_float_data();
    t->set_data_location(onnx::TensorProto::EXTERNAL);
    for (auto [key, value] : {std::pair{"location", location}, {"offset", offset}, {"length", length}}) {
      if (value.empty()) continue;
      t->add_external_data()->set_key(key);
      t->mutable_external_data(t->external_data_size() - 1)->set_value(value);
    }
    refused_model(m, HasSubstr(message));
  };
  outside_.write("secret.bin", std::string(24, '\0'));
  in_.write("short.bin", std::string(10, '\0'));
  in_.write("whole.bin", std::string(24, '\0'));
  std::filesystem::create_symlink(outside_ / "secret.bin", in_ / "link.bin");
  std::filesystem::create_directory_symlink(outside_.path(), in_ / "linked");
  ASSERT_EQ(mkfifo((in_ / "pipe.bin").c_str(), 0600), 0);
  external("../secret.bin", "", "", "'..'");
  external(outside_ / "secret.bin", "", "", "is absolute");
  external("link.bin", "", "", "is a link");
  external("linked/secret.bin", "", "", "is a link");
  external("short.bin", "", "", "is too short");
  external("whole.bin", "8", "", "is too short");
  external("whole.bin", "9223372036854775807", "", "overflows");
  external("whole.bin", "-1", "", "negative");
  external("whole.bin", "0", "12", "12 bytes");
  external("whole.bin", "zero", "", "whole number");
  external("pipe.bin", "", "", "not a regular file");
  external("absent.bin", "", "", "absent.bin");
}

TEST_F(BadModels, SizesThatExplode) {
  auto constant = [&](std::vector<int64_t> sizes) {
    onnx::ModelProto m = linear_model();
    onnx::GraphProto* g = m.mutable_graph();
    add_ints(g, "sizes", std::move(sizes));
    add_node(g, "ConstantOfShape", {"sizes"}, {"c"}, "huge");
    auto* keep = add_node(g, "ReduceSum", {"c"}, {"s"});
    add_int(keep, "keepdims", 0);
    add_node(g, "Add", {"y", "s"}, {"z"});
    g->mutable_output(0)->set_name("z");
    refused_model(m, HasSubstr("'huge'"), AnyOf(2, 3));
  };
  constant({1 << 20, 1 << 20, 16});
  constant({int64_t{1} << 40, int64_t{1} << 40});
  constant({-1, 4});
  onnx::ModelProto m = linear_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_ints(g, "d0", {1, 2});
  for (int k = 0; k < 60; ++k) add_int(add_node(g, "Concat", {cat("d", k), cat("d", k)}, {cat("d", k + 1)}), "axis", 0);
  add_node(g, "ReduceMax", {"d60"}, {"m"});
  auto* to = add_node(g, "Cast", {"m"}, {"f"});
  add_int(to, "to", kFloat);
  add_node(g, "Add", {"y", "f"}, {"z"});
  g->mutable_output(0)->set_name("z");
  refused_model(m, HasSubstr("TiB"), AnyOf(2, 3));
  // Batches of a size that no memory holds, and an activation that none holds.
  m = linear_model();
  m.mutable_graph()
      ->mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(int64_t{1} << 36);
  in_.write("train.yaml", "loss: {kind: mse, output: y, target: target}\noptimizer: {kind: sgd, lr: 0.1}\n");
  in_.write("model.onnx", m.SerializeAsString());
  expect_refused(testing::_, AnyOf(2, 3));
}

TEST_F(BadModels, ControlFlow) {
  onnx::ModelProto m = linear_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_node(g, "NonZero", {"y"}, {"t"}, "bad");
  g->mutable_output(0)->set_name("t");
  refused_model(m, AllOf(HasSubstr("NonZero 'bad'"), HasSubstr("depends on data")));
  m = linear_model();
  g = m.mutable_graph();
  add_value(g->add_input(), "c", {}, onnx::TensorProto::BOOL);
  auto* choice = add_node(g, "If", {"c"}, {"t"}, "bad");
  for (const char* name : {"then_branch", "else_branch"}) {
    auto* a = choice->add_attribute();
    a->set_name(name);
    a->set_type(onnx::AttributeProto::GRAPH);
    add_node(a->mutable_g(), "Relu", {"y"}, {"o"});
    add_value(a->mutable_g()->add_output(), "o", {});
  }
  g->mutable_output(0)->set_name("t");
  refused_model(m, AllOf(HasSubstr("If 'bad'"), HasSubstr("depends on the data input 'c'")));
  m = linear_model();
  m.add_opset_import()->set_domain("local");
  m.mutable_opset_import(1)->set_version(1);
  for (int k = 0; k < 31; ++k) {
    auto* f = m.add_functions();
    f->set_domain("local");
    f->set_name(cat("f", k));
    f->add_input("a");
    f->add_output("b9");
    f->add_opset_import()->set_version(18);
    f->add_opset_import()->set_domain("local");
    f->mutable_opset_import(1)->set_version(1);
    for (int j = 0; j < 10; ++j) {
      auto* n = f->add_node();
      n->set_op_type(k == 30 ? "Relu" : cat("f", k + 1));
      if (k < 30) n->set_domain("local");
      n->add_input(j == 0 ? "a" : cat("b", j - 1));
      n->add_output(cat("b", j));
    }
  }
  auto* call = add_node(m.mutable_graph(), "f0", {"y"}, {"t"}, "bad");
  call->set_domain("local");
  m.mutable_graph()->mutable_output(0)->set_name("t");
  refused_model(m, HasSubstr("expands into more than"));
  m.mutable_functions(30)->mutable_node(0)->set_op_type("f0");
  m.mutable_functions(30)->mutable_node(0)->set_domain("local");
  refused_model(m, HasSubstr("calls itself"));
}

// Long chains are no fault: they compile within the limits, or are refused.
TEST_F(BadModels, HundredThousandNodes_InARow) {
  onnx::ModelProto m = linear_model();
  onnx::GraphProto* g = m.mutable_graph();
  const int n = 100000;
  for (int k = 0; k < n; ++k)
    add_node(g, k % 2 ? "Neg" : "Relu", {k ? cat("v", k) : "y"}, {cat("v", k + 1)}, cat("n", k));
  g->mutable_output(0)->set_name(cat("v", n));
  in_.write("model.onnx", m.SerializeAsString());
  in_.write("train.yaml", "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 0.1}\nbatch: {global: 4}\n");
  Outcome o = train();
  EXPECT_THAT(o.code, AnyOf(0, 2, 3)) << o.text;
  EXPECT_LT(o.processor_seconds, 60);
  EXPECT_LT(o.peak_bytes, int64_t{2} << 30);
}

TEST_F(BadModels, Losses) {
  const std::string own = "loss: {kind: output, output: y}\noptimizer: {kind: sgd, lr: 0.1}\n";
  refused_recipe(own, AllOf(HasSubstr("'y'"), HasSubstr("expected a scalar")));
  refused_recipe("loss: {kind: mse, output: z}\n", AllOf(HasSubstr("no output 'z'"), HasSubstr("'y'")));
  refused_recipe("loss: {kind: mse, output: y, target: x}\n",
                 HasSubstr("input 'x' is f32[4,3], and targets of kind mse are f32[4,2]"));
  refused_recipe(cat(kRecipe, "frozen: ['*']\n"), HasSubstr("no trainable parameter"));
  onnx::ModelProto m = linear_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_int(add_node(g, "Cast", {"y"}, {"i"}), "to", kInt64);
  add_int(add_node(g, "ReduceSum", {"i"}, {"s"}), "keepdims", 0);
  g->mutable_output(0)->set_name("s");
  g->mutable_output(0)->mutable_type()->mutable_tensor_type()->set_elem_type(kInt64);
  in_.write("model.onnx", m.SerializeAsString());
  refused_recipe("loss: {kind: output, output: s}\n", AllOf(HasSubstr("'s'"), HasSubstr("expected a float")));
  m = linear_model();
  g = m.mutable_graph();
  add_int(add_node(g, "ReduceSum", {"x"}, {"s"}), "keepdims", 0);
  g->mutable_output(0)->set_name("s");
  in_.write("model.onnx", m.SerializeAsString());
  refused_recipe("loss: {kind: output, output: s}\n", HasSubstr("no trainable parameter"));
}

TEST_F(BadModels, ValuesThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  onnx::ModelProto m = linear_model();
  m.mutable_graph()->mutable_initializer(0)->set_float_data(4, nan);
  refused_model(m, AllOf(HasSubstr("initializer 'w'"), HasSubstr("element 4"), HasSubstr("nan")));
  m.mutable_graph()->mutable_initializer(0)->set_float_data(4, infinity);
  refused_model(m, AllOf(HasSubstr("initializer 'w'"), HasSubstr("inf")));
  in_.write("model.onnx", linear_model().SerializeAsString());
  data_ = "nan.npz";
  write_data(data_, 8, {{5, nan}});
  expect_refused(AllOf(HasSubstr("nan.npz"), HasSubstr("sample 1"), HasSubstr("'x'"), HasSubstr("nan")));
}

TEST_F(BadModels, Recipes) {
  refused_recipe("loss: {kind: mse, output: y}\noptimiser: {kind: sgd}\n", HasSubstr("'optimizer'"));
  refused_recipe("loss: {kind: mse, output: y, targte: t}\n", HasSubstr("'target'"));
  refused_recipe("batch: {global: four}\n", AllOf(HasSubstr("batch.global"), HasSubstr("'four'")));
  refused_recipe("batch: [4]\n", HasSubstr("batch"));
  refused_recipe("loss: {kind: mse\n", HasSubstr("train.yaml"));
  refused_recipe("optimizer: {kind: sgd, lr: .nan}\n", HasSubstr("lr"));
  refused_recipe("batch: {global: 99999999999999999999}\n", HasSubstr("batch.global"));
  refused_recipe(std::string(100000, '['), HasSubstr("train.yaml"));
  refused_recipe(std::string("\x00\x01\x02\xff", 4), HasSubstr("train.yaml"));
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int k = 1; k < 20; ++k)
    bomb += cat("a", k, ": &a", k, " [*a", k - 1, ", *a", k - 1, ", *a", k - 1, ", *a", k - 1, ", *a", k - 1, "]\n");
  refused_recipe(bomb, HasSubstr("train.yaml"));
  recipe_ = "absent.yaml";
  expect_refused(HasSubstr("absent.yaml"));
}

TEST_F(BadModels, Data) {
  data_ = "few.npz";
  write_data(data_, 6, {});
  expect_refused(AllOf(HasSubstr("few.npz"), HasSubstr("too few samples")));
  data_ = "absent.npz";
  expect_refused(HasSubstr("absent.npz"));
  data_ = "folder.npz";
  std::filesystem::create_directory(in_ / data_);
  expect_refused(AllOf(HasSubstr("folder.npz"), HasSubstr("folder")));
  data_ = "damaged.npz";
  std::string sound = TempFolder::read(in_ / "data.npz");
  in_.write(data_, sound.substr(0, sound.size() - 40));
  expect_refused(HasSubstr("damaged.npz"));
  sound[60] ^= 1;
  sound[130] ^= 1;
  in_.write(data_, sound);
  expect_refused(HasSubstr("damaged.npz"));
  in_.write(data_, "PK\x03\x04 and then text");
  expect_refused(HasSubstr("damaged.npz"));
  data_ = "wrong.npz";
  std::vector<float> values(64, 1);
  auto bytes = std::as_bytes(std::span(values));
  ASSERT_TRUE(runtime::write_npz(in_ / data_, {{"x", DType::kF32, {8, 3}, bytes.first(96)}}).ok());
  expect_refused(AllOf(HasSubstr("wrong.npz"), HasSubstr("'target'")));
  ASSERT_TRUE(runtime::write_npz(in_ / data_, {{"x", DType::kF32, {8, 4}, bytes.first(128)},
                                               {"target", DType::kF32, {8, 2}, bytes.first(64)}})
                  .ok());
  expect_refused(AllOf(HasSubstr("wrong.npz"), HasSubstr("[8, 4]")));
}

// Limits of the shell stand for a full disk: a write past them fails as one there does.
TEST_F(BadModels, FullDisk) {
  expect_refused(HasSubstr("cannot write"), testing::Eq(3), "trap '' XFSZ; ulimit -f 1; ");
}

}  // namespace
}  // namespace partita
