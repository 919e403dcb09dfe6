#include "frontend/annotated_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "frontend/onnx/device_annotations.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

class AnnotatedLayout : public testing::Test {
 protected:
  // x [4, 8] in two parts of samples over four devices, and `pins` in the file's metadata.
  absl::Status like(const std::string& pins, int64_t count = 4) {
    onnx::ModelProto m = empty_model();
    onnx::GraphProto* g = m.mutable_graph();
    add_value(g->add_input(), "x", {4, 8});
    add_value(g->add_output(), "y", {4, 8});
    add_node(g, "Relu", {"x"}, {"y"}, "positive");
    std::ofstream(out_ / "m.onnx", std::ios::binary) << m.SerializeAsString();
    OnnxDevices d{"mine", count, pins, {}, {}};
    d.tensors.resize(1);
    d.tensors[0]["x"] = {{{0, {{4, 2}}}}, {{0, 1}, {2, 3}}};
    const auto written = write_device_annotations(out_ / "m.onnx", out_ / "a.onnx", d);
    EXPECT_TRUE(written.ok()) << written.status();
    recipe_ = {};
    return apply_like(recipe_, out_ / "a.onnx");
  }

  TempFolder out_;
  Recipe recipe_;
};

// A tool may write other annotations and leave the metadata as it was; the plan was the old one's, without a word.
TEST_F(AnnotatedLayout, PinsThatWentAlongAreThoseOfTheAnnotations) {
  const absl::Status same = like("{data: 2, tensor: 2, pipeline: 1, zero: 1}");
  ASSERT_TRUE(same.ok()) << same;
  EXPECT_EQ(recipe_.pin.axis("tensor"), 2);
  EXPECT_EQ(recipe_.pin.zero, 1);
  EXPECT_THAT(std::string(like("{data: 4, tensor: 1}").message()),
              HasSubstr("are of two layouts: 'x' is in 2 parts, which no axes of the pins have together"));
  EXPECT_THAT(std::string(like("{data: 2, tensor: 2}", 8).message()),
              HasSubstr("pins of 4 ranks, a configuration of 8 devices"));
  EXPECT_THAT(std::string(like("{data: 2, pipeline: 2}").message()), HasSubstr("pins of 2 stages, nodes of 1"));
}

}  // namespace
}  // namespace partita
