// Random numbers are those of the step's samples: whatever the model was exported with, however a step is divided into
// runs of its graph, parts of a run and ranks, each sample gets its own numbers, and the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/files/npz.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

constexpr int kStepSamples = 8, kWidth = 16, kSteps = 3;

class RandomNumbers : public testing::Test {
 protected:
  // Two layers with dropout behind each, and noise. All samples are equal: only random numbers tell them apart.
  std::string model(int64_t samples) {
    onnx::ModelProto m = empty_model();
    onnx::GraphProto* g = m.mutable_graph();
    add_value(g->add_input(), "x", {samples, kWidth});
    add_value(g->add_output(), "y", {samples, kWidth});
    std::vector<float> w(kWidth * kWidth);
    for (size_t k = 0; k < w.size(); ++k) w[k] = static_cast<float>(k * 7 % 11) / 32 - 0.125f;
    add_floats(g, "ratio", {}, {0.5f});
    auto* training = g->add_initializer();
    training->set_name("training");
    training->set_data_type(onnx::TensorProto::BOOL);
    training->add_int32_data(1);
    std::string x = "x";
    for (const std::string layer : {"first", "second"}) {
      add_floats(g, layer, {kWidth, kWidth}, w);
      add_node(g, "MatMul", {x, layer}, {layer + "_product"});
      add_node(g, "Dropout", {layer + "_product", "ratio", "training"}, {layer + "_kept"}, "drop " + layer);
      x = layer + "_kept";
    }
    add_node(g, "RandomNormalLike", {x}, {"noise"});
    add_node(g, "Add", {x, "noise"}, {"y"});
    return out_.write("model" + std::to_string(samples) + ".onnx", m.SerializeAsString());
  }

  void SetUp() override {
    const std::vector<float> x(kSteps * kStepSamples * kWidth, 1), target(x.size(), 0);
    const std::vector<int64_t> shape = {kSteps * kStepSamples, kWidth};
    ASSERT_TRUE(
        runtime::write_npz(out_ / "data.npz", {{"x", DType::kF32, shape, std::as_bytes(std::span(x))},
                                               {"target", DType::kF32, shape, std::as_bytes(std::span(target))}})
            .ok());
    out_.write("train.yaml", "loss: {kind: mse}\noptimizer: {kind: sgd, lr: 0.1}\nbatch: {global: 8}\n");
  }

  std::vector<double> losses(int64_t samples, const std::string& flags) {
    std::filesystem::remove_all(out_ / "bundle");
    std::filesystem::remove(out_ / "m.jsonl");
    Outcome o = run_partita("compile " + model(samples) + " --train " + (out_ / "train.yaml") + " -o " +
                            (out_ / "bundle") + " " + flags);
    EXPECT_EQ(o.code, 0) << o.text;
    o = run_partita("verify " + (out_ / "bundle"));
    EXPECT_EQ(o.code, 0) << o.text;
    o = run_partita("run " + (out_ / "bundle") + " --data " + (out_ / "data.npz") + " --steps " +
                    std::to_string(kSteps) + " --threads 1 --quiet " + "--metrics " + (out_ / "m.jsonl"));
    EXPECT_EQ(o.code, 0) << o.text;
    return read_losses(out_ / "m.jsonl");
  }

  TempFolder out_;
};

TEST_F(RandomNumbers, AreThoseOfTheSample_InAnyRunOnAnyRank) {
  const std::vector<double> whole = losses(kStepSamples, "");
  ASSERT_EQ(whole.size(), static_cast<size_t>(kSteps));
  const struct {
    int64_t samples;  // of the exported graph
    const char* flags;
  } cases[] = {{8, "--pin micro_batch=2"},
               {8, "--ranks 2"},
               {2, ""},
               {1, ""},
               {2, "--ranks 2"},
               {2, "--ranks 4 --like zero3"},
               {2, "--ranks 2 --pin micro_batch=1"},
               {2, "--pin pipeline=2"},
               {4, "--pin pipeline=2 --pin data=2 --pin micro_batch=1"},
               {2, "--pin tensor=2"}};
  for (const auto& c : cases) {
    EXPECT_THAT(losses(c.samples, c.flags), testing::Pointwise(testing::DoubleNear(1e-5), whole))
        << c.samples << " " << c.flags;
  }
}

}  // namespace
}  // namespace partita
