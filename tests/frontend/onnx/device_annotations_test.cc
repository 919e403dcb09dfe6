#include "frontend/onnx/device_annotations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "onnx/checker.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

// x [4, 8] w [8, 6] -> y
onnx::ModelProto product() {
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {4, 8});
  add_value(g->add_input(), "w", {8, 6});
  add_value(g->add_output(), "y", {4, 6});
  add_node(g, "MatMul", {"x", "w"}, {"y"}, "product");
  return m;
}

class DeviceAnnotations : public testing::Test {
 protected:
  void write(const onnx::ModelProto& m) { std::ofstream(file_, std::ios::binary) << m.SerializeAsString(); }
  onnx::ModelProto read(const std::string& file) {
    onnx::ModelProto m;
    std::ifstream in(file, std::ios::binary);
    EXPECT_TRUE(m.ParseFromIstream(&in));
    return m;
  }

  TempFolder out_;
  std::string file_ = out_ / "m.onnx", annotated_ = out_ / "a.onnx";
};

// Samples over two devices, features in two parts of three over the other two.
OnnxDevices four() {
  OnnxDevices d{"mine", 4, "{\"data\": 2, \"tensor\": 2}", {}, {}};
  d.tensors.resize(1);
  d.tensors[0]["x"] = {{{0, {{4, 2}}}}, {{0, 1}, {2, 3}}};
  d.tensors[0]["w"] = {{{1, {{3, 1}, {2, 2}}}}, {{0, 2}, {1, 3}}};
  d.tensors[0]["y"] = {{{0, {{4, 2}}}, {1, {{3, 1}, {2, 2}}}}, {{0}, {1}, {2}, {3}}};
  return d;
}

TEST_F(DeviceAnnotations, AreReadAsTheyWereWritten) {
  write(product());
  const OnnxDevices d = four();
  const auto nodes = write_device_annotations(file_, annotated_, d);
  ASSERT_TRUE(nodes.ok()) << nodes.status().message();
  EXPECT_EQ(*nodes, 1);
  const onnx::ModelProto m = read(annotated_);
  EXPECT_EQ(m.ir_version(), 11);
  EXPECT_NO_THROW(onnx::checker::check_model(m));
  const auto& spec = m.graph().node(0).device_configurations(0).sharding_spec(0);
  EXPECT_EQ(spec.device_size(), 2);
  EXPECT_EQ(spec.index_to_device_group_map_size(), 2);
  const auto back = read_device_annotations(annotated_);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->configuration, "mine");
  EXPECT_EQ(back->devices, 4);
  EXPECT_EQ(back->pins, d.pins);
  EXPECT_EQ(back->tensors, d.tensors);
  // In place of what was there.
  ASSERT_TRUE(write_device_annotations(annotated_, annotated_, d).ok());
  EXPECT_EQ(read(annotated_).SerializeAsString(), m.SerializeAsString());
}

TEST_F(DeviceAnnotations, HaveTheStagesOfNodes) {
  onnx::ModelProto two = product();
  add_node(two.mutable_graph(), "Relu", {"y"}, {"z"}, "relu");
  write(two);
  OnnxDevices d{"pipe", 2, "", {{"y", 0}, {"z", 1}}, {}};
  d.tensors.resize(2);
  d.tensors[1]["y"] = {{}, {{1}}};
  ASSERT_TRUE(write_device_annotations(file_, annotated_, d).ok());
  EXPECT_NO_THROW(onnx::checker::check_model(read(annotated_)));
  const auto back = read_device_annotations(annotated_);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->stages, d.stages);
  EXPECT_EQ(back->tensors, d.tensors);
}

TEST_F(DeviceAnnotations, ThatAreDamagedAreRefused) {
  write(product());
  EXPECT_EQ(read_device_annotations(file_).status().code(), absl::StatusCode::kNotFound);
  auto message = [&](auto change) {
    OnnxDevices d = four();
    change(d);
    EXPECT_TRUE(write_device_annotations(file_, annotated_, d).ok());
    return std::string(read_device_annotations(annotated_).status().message());
  };
  EXPECT_THAT(message([](OnnxDevices& d) { d.tensors[0]["x"].devices[1] = {7}; }),
              HasSubstr("'x': expected devices below 4, found 7"));
  EXPECT_THAT(message([](OnnxDevices& d) { d.tensors[0]["x"].devices.pop_back(); }),
              HasSubstr("'x': expected devices for 2 shards, found 1"));
  EXPECT_THAT(message([](OnnxDevices& d) { d.tensors[0]["w"].dims[0].second[0].shards = 0; }),
              HasSubstr("'w': expected one shard or more, found 0"));
  onnx::ModelProto m = product();
  m.mutable_graph()->mutable_input()->RemoveLast();
  onnx::TensorProto* w = m.mutable_graph()->add_initializer();
  w->set_name("w"), w->set_data_type(kFloat), w->add_dims(8), w->add_dims(6);
  w->set_data_location(onnx::TensorProto::EXTERNAL);
  auto* at = w->add_external_data();
  at->set_key("location"), at->set_value("w.bin");
  std::ofstream(out_ / "w.bin", std::ios::binary) << std::string(8 * 6 * 4, '\0');
  write(m);
  EXPECT_TRUE(write_device_annotations(file_, annotated_, four()).ok());
  TempFolder other;
  EXPECT_THAT(std::string(write_device_annotations(file_, other / "a.onnx", four()).status().message()),
              HasSubstr("expected a file in its folder"));
}

}  // namespace
}  // namespace partita
