// Hostile and broken models: each is refused with one readable line, fast, and never by a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/onnx_import.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

std::string refusal_of_file(const std::string& path) {
  auto start = std::chrono::steady_clock::now();
  auto model = import_onnx(path);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  if (model.ok()) {
    ADD_FAILURE() << "was accepted";
    return "";
  }
  std::string message(model.status().message());
  EXPECT_TRUE(is_utf8(message)) << quote(message, 1000);
  for (char c : message) EXPECT_FALSE(c >= 0 && c < 32) << quote(message, 1000);
  EXPECT_LT(message.size(), 1200u);
  EXPECT_THAT(message, HasSubstr(path));
  return message;
}

std::string refusal_of(const onnx::ModelProto& model) {
  TempFolder folder;
  return refusal_of_file(folder.write("model.onnx", model.SerializeAsString()));
}

absl::Status import_of(const onnx::ModelProto& model) {
  TempFolder folder;
  return import_onnx(folder.write("model.onnx", model.SerializeAsString())).status();
}

TEST(BadInput, SoundModel_Imports) { EXPECT_TRUE(import_of(relu_model()).ok()); }

TEST(BadInput, Files_ThatAreNoModels) {
  TempFolder folder;
  EXPECT_THAT(refusal_of_file(folder / "absent.onnx"), HasSubstr("No such file"));
  EXPECT_THAT(refusal_of_file(folder.write("empty.onnx", "")), HasSubstr("empty"));
  EXPECT_THAT(refusal_of_file(folder.write("text.onnx", "loss: {kind: output}\n")), HasSubstr("text file"));
  EXPECT_THAT(refusal_of_file(folder.write("zeros.onnx", std::string(100, '\0'))), HasSubstr("not an ONNX model"));
  refusal_of_file(folder.path());  // a folder without a model
}

TEST(BadInput, TruncatedAtEveryByte_IsRefusedOrStillSound) {
  std::string bytes = relu_model().SerializeAsString();
  TempFolder folder;
  for (size_t n = 1; n < bytes.size(); ++n) {
    auto model = import_onnx(folder.write("model.onnx", bytes.substr(0, n)));
    EXPECT_EQ(model.ok(), model.status().message().empty());
  }
}

TEST(BadInput, RandomBytesAndFlippedBits_NeverCrash) {
  std::mt19937 random(1);
  std::string good = relu_model().SerializeAsString();
  TempFolder folder;
  for (int k = 0; k < 300; ++k) {
    std::string bytes = good;
    if (k % 3 == 0) {
      bytes.resize(1 + random() % 200);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      for (int j = 0; j < 3; ++j) bytes[random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
    }
    (void)import_onnx(folder.write("model.onnx", bytes));
  }
}

TEST(BadInput, Versions_OutOfRange) {
  onnx::ModelProto m = relu_model();
  m.set_ir_version(15);
  EXPECT_THAT(refusal_of(m), HasSubstr("IR version 15 is not supported (3 to 14 are)"));
  m = relu_model();
  m.mutable_opset_import(0)->set_version(29);
  EXPECT_THAT(refusal_of(m), HasSubstr("newer than the newest known, 28"));
  m.mutable_opset_import(0)->set_version(6);
  EXPECT_THAT(refusal_of(m), HasSubstr("older than the oldest supported, 7"));
  m.mutable_opset_import(0)->set_version(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(refusal_of(m), HasSubstr("newer"));
  m.clear_opset_import();
  EXPECT_THAT(refusal_of(m), HasSubstr("imports no operator set"));
}

TEST(BadInput, UnknownOperators_AreNamed) {
  onnx::ModelProto m = relu_model();
  m.mutable_graph()->mutable_node(0)->set_op_type("Rleu");
  EXPECT_THAT(refusal_of(m), AllOf(HasSubstr("Rleu 'n'"), HasSubstr("no operator 'Rleu'")));
  m.mutable_graph()->mutable_node(0)->set_domain("my.company");
  EXPECT_THAT(refusal_of(m), HasSubstr("operator set 'my.company' is not imported"));
  auto* o = m.add_opset_import();
  o->set_domain("my.company");
  o->set_version(1);
  EXPECT_THAT(refusal_of(m), HasSubstr("domain 'my.company' is not known"));
  for (const char* domain : {"com.microsoft", "com.microsoft.nchwc"}) {
    m.mutable_graph()->mutable_node(0)->set_domain(domain);
    o->set_domain(domain);
    EXPECT_THAT(refusal_of(m), HasSubstr("write the file with ORT_ENABLE_BASIC"));
  }
}

TEST(BadInput, Names_DuplicateMissingCyclic) {
  onnx::ModelProto m = relu_model();
  add_node(m.mutable_graph(), "Relu", {"x"}, {"y"}, "second");
  EXPECT_THAT(refusal_of(m), HasSubstr("'y' is made twice: by Relu 'n' and by Relu 'second'"));
  m = relu_model();
  m.mutable_graph()->mutable_node(0)->set_input(0, "z");
  EXPECT_THAT(refusal_of(m), HasSubstr("input 'z' is not defined anywhere"));
  m = relu_model();
  m.mutable_graph()->mutable_node(0)->set_output(0, "x");
  EXPECT_THAT(refusal_of(m), HasSubstr("is the name of a graph input or initializer too"));
  m = relu_model();
  add_node(m.mutable_graph(), "Neg", {"b"}, {"a"}, "first");
  add_node(m.mutable_graph(), "Neg", {"a"}, {"b"}, "second");
  EXPECT_THAT(refusal_of(m), AllOf(HasSubstr("cycle"), HasSubstr("Neg 'first'"), HasSubstr("Neg 'second'")));
  m = relu_model();
  m.mutable_graph()->mutable_output(0)->set_name("absent");
  EXPECT_THAT(refusal_of(m), HasSubstr("graph output 'absent' is made by no node"));
  m = relu_model();
  add_value(m.mutable_graph()->add_input(), "x", {2});
  EXPECT_THAT(refusal_of(m), HasSubstr("two graph inputs are named 'x'"));
}

TEST(BadInput, UnsortedNodes_AreSorted) {
  onnx::ModelProto m = empty_model();
  add_value(m.mutable_graph()->add_input(), "x", {2});
  add_value(m.mutable_graph()->add_output(), "y", {2});
  add_node(m.mutable_graph(), "Relu", {"t"}, {"y"});
  add_node(m.mutable_graph(), "Neg", {"x"}, {"t"});
  EXPECT_TRUE(import_of(m).ok());
}

TEST(BadInput, Attributes_OfTheWrongTypeOrMissing) {
  onnx::ModelProto m = relu_model();
  auto* n = m.mutable_graph()->mutable_node(0);
  n->set_op_type("Softmax");
  auto* a = n->add_attribute();
  a->set_name("axis");
  a->set_type(onnx::AttributeProto::STRING);
  a->set_s("1");
  EXPECT_THAT(refusal_of(m), HasSubstr("attribute 'axis': expected INT, found STRING"));
  m = relu_model();
  m.mutable_graph()->mutable_node(0)->set_op_type("Cast");
  EXPECT_THAT(refusal_of(m), HasSubstr("attribute 'to' is missing"));
  m = relu_model();
  m.mutable_graph()->mutable_node(0)->add_input("x");
  EXPECT_THAT(refusal_of(m), HasSubstr("expected 1 to 1 inputs, found 2"));
  m = relu_model();
  add_int(m.mutable_graph()->mutable_node(0), "axis", 7);
  m.mutable_graph()->mutable_node(0)->set_op_type("Softmax");
  EXPECT_THAT(refusal_of(m), HasSubstr("axis 7 does not exist in a tensor of rank 1"));
}

// Every operator with absurd attribute values and inputs: no crash, no hang.
TEST(BadInput, ExtremeNumbers_InAttributes) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> uses = {
      {"Conv", {"strides", "pads", "dilations", "kernel_shape"}},
      {"ConvTranspose", {"strides", "pads", "dilations", "output_padding", "output_shape"}},
      {"MaxPool", {"strides", "pads", "dilations", "kernel_shape"}},
      {"AveragePool", {"strides", "pads", "kernel_shape"}},
      {"Transpose", {"perm"}}};
  const int64_t extremes[] = {0,
                              -1,
                              2,
                              std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min(),
                              int64_t{1} << 31,
                              int64_t{1} << 62};
  for (const auto& [op, names] : uses) {
    for (const std::string& name : names) {
      for (int64_t value : extremes) {
        for (int length : {1, 2, 4}) {
          onnx::ModelProto m = empty_model();
          add_value(m.mutable_graph()->add_input(), "x", {1, 3, 8, 8});
          add_value(m.mutable_graph()->add_input(), "w", {3, 3, 3, 3});
          add_value(m.mutable_graph()->add_output(), "y", {});
          bool weight = op.starts_with("Conv");
          auto* n = add_node(m.mutable_graph(), op,
                             weight ? std::vector<std::string>{"x", "w"} : std::vector<std::string>{"x"}, {"y"});
          auto* a = n->add_attribute();
          a->set_name(name);
          a->set_type(onnx::AttributeProto::INTS);
          for (int k = 0; k < length; ++k) a->add_ints(value);
          (void)import_of(m);
        }
      }
    }
  }
}

TEST(BadInput, Tensors_WithFalseSizes) {
  auto with = [](const std::function<void(onnx::TensorProto*)>& spoil) {
    onnx::ModelProto m = relu_model();
    m.mutable_graph()->mutable_node(0)->set_op_type("Add");
    m.mutable_graph()->mutable_node(0)->add_input("w");
    auto* t = m.mutable_graph()->add_initializer();
    t->set_name("w");
    t->set_data_type(kFloat);
    spoil(t);
    return refusal_of(m);
  };
  EXPECT_THAT(with([](auto* t) { t->add_dims(2), t->set_raw_data("abc"); }), HasSubstr("takes 8 bytes, found 3"));
  EXPECT_THAT(with([](auto* t) { t->add_dims(-2); }), HasSubstr("dimension -2 is negative"));
  EXPECT_THAT(with([](auto* t) { t->add_dims(int64_t{1} << 40), t->add_dims(int64_t{1} << 40); }),
              HasSubstr("overflows"));
  EXPECT_THAT(with([](auto* t) { t->add_dims(1000000000); }), HasSubstr("elements, found 0"));
  EXPECT_THAT(with([](auto* t) { t->set_data_type(onnx::TensorProto::STRING), t->add_string_data("x"); }),
              HasSubstr("STRING, which is not supported"));
  EXPECT_THAT(with([](auto* t) { t->set_data_type(77); }), HasSubstr("element type 77"));
}

class External : public testing::Test {
 protected:
  // A model whose weight [2] lies at `location`.
  std::string write_model(const std::string& location, const std::string& offset = "", const std::string& length = "") {
    onnx::ModelProto m = relu_model();
    m.mutable_graph()->mutable_node(0)->set_op_type("Add");
    m.mutable_graph()->mutable_node(0)->add_input("w");
    auto* t = m.mutable_graph()->add_initializer();
    t->set_name("w");
    t->set_data_type(kFloat);
    t->add_dims(2);
    t->set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] :
         {std::pair<std::string, std::string>{"location", location}, {"offset", offset}, {"length", length}}) {
      if (value.empty()) continue;
      auto* e = t->add_external_data();
      e->set_key(key);
      e->set_value(value);
    }
    std::filesystem::create_directories(folder_ / "model");
    return folder_.write("model/model.onnx", m.SerializeAsString());
  }
  TempFolder folder_;
};

TEST_F(External, SoundFile_IsMapped) {
  std::string path = write_model("weights.bin", "4");
  folder_.write("model/weights.bin", std::string(12, '\0'));
  auto model = import_onnx(path);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_TRUE(std::holds_alternative<Literal>(model->graph.states.at(0).initial));
}

TEST_F(External, MissingFile_IsFineUntilNeeded) {
  auto model = import_onnx(write_model("weights.bin", "4"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto* range = std::get_if<FileRange>(&model->graph.states.at(0).initial);
  ASSERT_TRUE(range);
  EXPECT_EQ(range->offset, 4);
  EXPECT_EQ(range->bytes, 8);
}

TEST_F(External, Escapes_AreRefused) {
  folder_.write("secret.bin", std::string(8, '\0'));
  EXPECT_THAT(refusal_of_file(write_model("../secret.bin")), HasSubstr("leaves the model's folder with '..'"));
  EXPECT_THAT(refusal_of_file(write_model("a/../../secret.bin")), HasSubstr("'..'"));
  EXPECT_THAT(refusal_of_file(write_model(folder_ / "secret.bin")), HasSubstr("is absolute"));
  EXPECT_THAT(refusal_of_file(write_model("")), HasSubstr("location of external data is empty"));
  EXPECT_THAT(refusal_of_file(write_model("..\\secret.bin")), HasSubstr("not a plain relative path"));
  EXPECT_THAT(refusal_of_file(write_model(std::string("a\0b", 3))), HasSubstr("not a plain relative path"));
  std::string path = write_model("link.bin");
  ASSERT_EQ(symlink((folder_ / "secret.bin").c_str(), (folder_ / "model/link.bin").c_str()), 0);
  EXPECT_THAT(refusal_of_file(path), HasSubstr("is a link"));
  path = write_model("folder/secret.bin");
  ASSERT_EQ(symlink(folder_.path().c_str(), (folder_ / "model/folder").c_str()), 0);
  EXPECT_THAT(refusal_of_file(path), HasSubstr("is a link"));
  EXPECT_THAT(refusal_of_file(write_model("folder")), HasSubstr("is a link"));
}

TEST_F(External, Ranges_OutsideTheFile) {
  folder_.write("weights.bin", "");
  std::string path = write_model("weights.bin", "0");
  folder_.write("model/weights.bin", "1234567");
  EXPECT_THAT(refusal_of_file(path), HasSubstr("is too short: bytes 0 to 8 are asked for, it has 7"));
  EXPECT_THAT(refusal_of_file(write_model("weights.bin", "-8")), HasSubstr("offset -8 is negative"));
  EXPECT_THAT(refusal_of_file(write_model("weights.bin", "9223372036854775800")), HasSubstr("overflows"));
  EXPECT_THAT(refusal_of_file(write_model("weights.bin", "99999999999999999999")),
              HasSubstr("not a 64-bit whole number"));
  EXPECT_THAT(refusal_of_file(write_model("weights.bin", "0", "4")), HasSubstr("has 4 bytes, but f32[2] takes 8"));
  EXPECT_THAT(refusal_of_file(write_model("weights.bin", "0", "-8")), HasSubstr("negative"));
}

TEST(BadInput, Terabytes_AreRefusedNotFolded) {
  onnx::ModelProto m = empty_model();
  add_value(m.mutable_graph()->add_input(), "x", {2});
  add_value(m.mutable_graph()->add_output(), "y", {});
  add_ints(m.mutable_graph(), "shape", {1 << 20, 1 << 20, 16});
  add_node(m.mutable_graph(), "ConstantOfShape", {"shape"}, {"c"}, "huge");
  add_node(m.mutable_graph(), "Add", {"x", "s"}, {"y"}, "add");
  add_node(m.mutable_graph(), "ReduceSum", {"c"}, {"s"}, "sum");
  EXPECT_THAT(refusal_of(m), AllOf(HasSubstr("ConstantOfShape 'huge'"), HasSubstr("TiB")));
  m.mutable_graph()->mutable_node(0)->set_op_type("Expand");
  m.mutable_graph()->mutable_node(0)->clear_input();
  m.mutable_graph()->mutable_node(0)->add_input("one");
  m.mutable_graph()->mutable_node(0)->add_input("shape");
  add_ints(m.mutable_graph(), "one", {1});
  EXPECT_THAT(refusal_of(m), AllOf(HasSubstr("Expand 'huge'"), HasSubstr("TiB")));
  onnx::ModelProto overflow = empty_model();
  add_value(overflow.mutable_graph()->add_output(), "y", {});
  add_ints(overflow.mutable_graph(), "shape", {int64_t{1} << 40, int64_t{1} << 40});
  add_node(overflow.mutable_graph(), "ConstantOfShape", {"shape"}, {"y"});
  EXPECT_THAT(refusal_of(overflow), HasSubstr("too large"));
}

// Folding that doubles at each node stops at a limit.
TEST(BadInput, DoublingConstants_StopAtALimit) {
  onnx::ModelProto m = empty_model();
  add_ints(m.mutable_graph(), "c0", {1, 2});
  for (int k = 0; k < 60; ++k)
    add_int(add_node(m.mutable_graph(), "Concat", {cat("c", k), cat("c", k)}, {cat("c", k + 1)}), "axis", 0);
  add_value(m.mutable_graph()->add_output(), "c60", {}, kInt64);
  EXPECT_THAT(refusal_of(m), HasSubstr("TiB"));
}

TEST(BadInput, HundredThousandNodes_InARow) {
  onnx::ModelProto m = empty_model();
  add_value(m.mutable_graph()->add_input(), "v0", {2});
  const int n = 100000;
  for (int k = 0; k < n; ++k) add_node(m.mutable_graph(), "Neg", {cat("v", k)}, {cat("v", k + 1)}, cat("n", k));
  add_value(m.mutable_graph()->add_output(), cat("v", n), {2});
  auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(import_of(m).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  // Backwards, and closed into a ring.
  onnx::ModelProto ring = empty_model();
  for (int k = n; k-- > 0;) add_node(ring.mutable_graph(), "Neg", {cat("v", k)}, {cat("v", (k + 1) % n)}, cat("n", k));
  add_value(ring.mutable_graph()->add_output(), "v1", {2});
  EXPECT_THAT(refusal_of(ring), HasSubstr("cycle"));
}

void add_function(onnx::ModelProto& m, const std::string& name, const std::vector<std::string>& calls) {
  auto* f = m.add_functions();
  f->set_domain("local");
  f->set_name(name);
  f->add_input("a");
  f->add_output("b");
  for (const char* domain : {"", "local"}) {
    auto* o = f->add_opset_import();
    o->set_domain(domain);
    o->set_version(*domain ? 1 : 18);
  }
  std::string from = "a";
  for (size_t k = 0; k < calls.size(); ++k) {
    auto* n = f->add_node();
    n->set_op_type(calls[k]);
    n->set_domain(calls[k].starts_with("f") ? "local" : "");
    n->add_input(from);
    from = k + 1 == calls.size() ? "b" : cat("t", k);
    n->add_output(from);
  }
}

onnx::ModelProto calling(const std::string& function) {
  onnx::ModelProto m = relu_model();
  auto* o = m.add_opset_import();
  o->set_domain("local");
  o->set_version(1);
  m.mutable_graph()->mutable_node(0)->set_op_type(function);
  m.mutable_graph()->mutable_node(0)->set_domain("local");
  return m;
}

TEST(BadInput, Functions_RecursiveAndExploding) {
  onnx::ModelProto m = calling("f1");
  add_function(m, "f1", {"Relu", "Neg"});
  EXPECT_TRUE(import_of(m).ok()) << import_of(m).message();
  m = calling("f1");
  add_function(m, "f1", {"f2"});
  add_function(m, "f2", {"f1"});
  EXPECT_THAT(refusal_of(m), HasSubstr("calls itself"));
  m = calling("f0");
  for (int k = 0; k < 30; ++k) add_function(m, cat("f", k), std::vector<std::string>(10, cat("f", k + 1)));
  add_function(m, "f30", {"Neg"});
  EXPECT_THAT(refusal_of(m), HasSubstr("expands into more than"));
  m = calling("f0");
  for (int k = 0; k < 2000; ++k) add_function(m, cat("f", k), {cat("f", k + 1)});
  add_function(m, "f2000", {"Neg"});
  EXPECT_THAT(refusal_of(m), HasSubstr("nested more than"));
}

TEST(BadInput, DataDependence_IsExplained) {
  onnx::ModelProto m = empty_model();
  add_value(m.mutable_graph()->add_input(), "x", {4});
  add_value(m.mutable_graph()->add_output(), "y", {}, kInt64);
  add_node(m.mutable_graph(), "NonZero", {"x"}, {"y"}, "where");
  EXPECT_THAT(refusal_of(m), AllOf(HasSubstr("NonZero 'where'"), HasSubstr("size depends on data")));
  onnx::ModelProto branch = empty_model();
  add_value(branch.mutable_graph()->add_input(), "c", {}, onnx::TensorProto::BOOL);
  add_value(branch.mutable_graph()->add_output(), "y", {});
  auto* n = add_node(branch.mutable_graph(), "If", {"c"}, {"y"}, "choice");
  for (const char* name : {"then_branch", "else_branch"}) {
    auto* a = n->add_attribute();
    a->set_name(name);
    a->set_type(onnx::AttributeProto::GRAPH);
    a->mutable_g()->set_name(name);
    add_value(a->mutable_g()->add_output(), "o", {});
    auto* constant = add_node(a->mutable_g(), "Constant", {}, {"o"});
    auto* v = constant->add_attribute();
    v->set_name("value_float");
    v->set_type(onnx::AttributeProto::FLOAT);
    v->set_f(1);
  }
  EXPECT_THAT(refusal_of(branch), AllOf(HasSubstr("If 'choice'"), HasSubstr("depends on the data input 'c'")));
}

TEST(BadInput, EndlessLoop_StopsAtALimit) {
  onnx::ModelProto m = empty_model();
  add_value(m.mutable_graph()->add_input(), "x", {2});
  add_value(m.mutable_graph()->add_output(), "y", {});
  auto* n = add_node(m.mutable_graph(), "Loop", {"", "", "x"}, {"y"}, "forever");
  auto* a = n->add_attribute();
  a->set_name("body");
  a->set_type(onnx::AttributeProto::GRAPH);
  auto* g = a->mutable_g();
  g->set_name("body");
  add_value(g->add_input(), "i", {}, kInt64);
  add_value(g->add_input(), "c", {}, onnx::TensorProto::BOOL);
  add_value(g->add_input(), "v", {2});
  add_node(g, "Identity", {"c"}, {"d"});
  add_node(g, "Neg", {"v"}, {"w"});
  add_value(g->add_output(), "d", {}, onnx::TensorProto::BOOL);
  add_value(g->add_output(), "w", {2});
  EXPECT_THAT(refusal_of(m), HasSubstr("the loop runs more than"));
}

TEST(BadInput, NestedSubgraphs_StopAtALimit) {
  onnx::ModelProto m = relu_model();
  onnx::GraphProto* g = m.mutable_graph();
  for (int k = 0; k < 400; ++k) {
    auto* a = add_node(g, "If", {"x"}, {"z"})->add_attribute();
    a->set_name("then_branch");
    a->set_type(onnx::AttributeProto::GRAPH);
    g = a->mutable_g();
  }
  refusal_of(m);
}

TEST(BadInput, UglyNames_AreEscaped) {
  for (const std::string& name : {std::string("\x1b[31mred\x1b[0m"), std::string("\xff\xfe bad \xc3"),
                                  std::string("two\nlines\ttab"), std::string(5000, 'a')}) {
    onnx::ModelProto m = relu_model();
    auto* n = m.mutable_graph()->mutable_node(0);
    n->set_name(name);
    n->set_op_type(name);
    n->set_input(0, name);
    refusal_of(m);
    m.mutable_graph()->mutable_input(0)->set_name(name);
    refusal_of(m);
    m = relu_model();
    m.mutable_graph()->mutable_node(0)->set_domain(name);
    refusal_of(m);
    m.add_opset_import()->set_domain(name);
    refusal_of(m);
  }
}

}  // namespace
}  // namespace partita
