// What `predict` and `generate` say of a model whose scores can be worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "base/cat.h"
#include "runtime/files/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBatch = 2, kSequence = 6, kWidth = 16, kIds = 9;

class Predict : public testing::Test {
 protected:
  // Scores of the token after each are a row of embed x head; the loss inside compares them with `labels`.
  void SetUp() override {
    for (std::vector<float>* weights : {&embed_, &head_}) {
      weights->resize(kIds * kWidth);
      for (float& x : *weights) x = std::normal_distribution<float>(0, 0.5f)(random_);
    }
    onnx::ModelProto m = empty_model();
    onnx::GraphProto* g = m.mutable_graph();
    add_value(g->add_input(), "input_ids", {kBatch, kSequence}, kInt64);
    add_value(g->add_input(), "labels", {kBatch, kSequence}, kInt64);
    add_floats(g, "embed", {kIds, kWidth}, embed_);
    add_floats(g, "head", {kWidth, kIds}, head_);
    add_node(g, "Gather", {"embed", "input_ids"}, {"x"});
    add_node(g, "MatMul", {"x", "head"}, {"logits"});
    add_ints(g, "rows", {-1}), add_ints(g, "rows_of_logits", {-1, kIds});
    add_node(g, "Reshape", {"labels", "rows"}, {"flat_labels"});
    add_node(g, "Reshape", {"logits", "rows_of_logits"}, {"flat_logits"});
    add_node(g, "SoftmaxCrossEntropyLoss", {"flat_logits", "flat_labels"}, {"loss"});
    add_value(g->add_output(), "loss", {});
    model_ = out_.write("model.onnx", m.SerializeAsString());
    for (int k = 0; k < 1000; ++k) ids_.push_back(static_cast<uint16_t>(k * 4 % 7 + k % 3 / 2));
    data_ = out_.write("ids.bin", std::string(reinterpret_cast<const char*>(ids_.data()), ids_.size() * 2));
  }
  double score(uint16_t id, int64_t next) const {
    double sum = 0;
    for (int64_t w = 0; w < kWidth; ++w)
      sum += static_cast<double>(embed_[static_cast<size_t>(id * kWidth + w)]) *
             static_cast<double>(head_[static_cast<size_t>(w * kIds + next)]);
    return sum;
  }
  double cross_entropy(uint16_t id, uint16_t next) const {
    double sum = 0;
    for (int64_t k = 0; k < kIds; ++k) sum += std::exp(score(id, k));
    return std::log(sum) - score(id, next);
  }
  template <typename T = float>
  std::vector<T> tensor(const std::string& name) {
    auto file = runtime::SafetensorsFile::open(out_ / "values.safetensors");
    EXPECT_TRUE(file.ok()) << file.status();
    const runtime::SafetensorsEntry* entry = file->find(name);
    if (entry == nullptr) return {};
    const auto bytes = file->data(*entry);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  Outcome predict(const std::string& flags) {
    return run_partita("predict " + model_ + " --data " + data_ + ":uint16 --threads 1 -o " +
                       (out_ / "values.safetensors") + " " + flags);
  }

  TempFolder out_;
  std::mt19937 random_{7};
  std::vector<float> embed_, head_;
  std::vector<uint16_t> ids_;
  std::string model_, data_;
};

TEST_F(Predict, ScoresLossAndInnerValuesAreTheModels) {
  const Outcome o = predict("--batch 2 --batches 3 --value logits --value loss --value x");
  ASSERT_EQ(o.code, 0) << o.text;
  const std::vector<float> logits = tensor("logits"), loss = tensor("loss"), x = tensor("x");
  ASSERT_EQ(logits.size(), static_cast<size_t>(3 * kBatch * kSequence * kIds));
  ASSERT_EQ(loss.size(), 3u);
  ASSERT_EQ(x.size(), static_cast<size_t>(3 * kBatch * kSequence * kWidth));
  std::vector<double> losses(3, 0);
  for (size_t k = 0; k < static_cast<size_t>(3 * kBatch * kSequence); ++k) {
    for (int64_t next = 0; next < kIds; ++next)
      EXPECT_NEAR(logits[k * kIds + static_cast<size_t>(next)], score(ids_[k], next), 1e-5);
    EXPECT_EQ(x[k * kWidth], embed_[static_cast<size_t>(ids_[k] * kWidth)]);
    losses[k / (kBatch * kSequence)] += cross_entropy(ids_[k], ids_[k + 1]) / (kBatch * kSequence);
  }
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(loss[k], losses[k], 1e-5);
}

// No step of the program reads them: values that are an input, or one in another shape.
TEST_F(Predict, AnInputIsWhatTheDataHave) {
  const Outcome o = predict("--batch 2 --batches 3 --value input_ids --value flat_labels --value x");
  ASSERT_EQ(o.code, 0) << o.text;
  const std::vector<int64_t> ids = tensor<int64_t>("input_ids"), labels = tensor<int64_t>("flat_labels");
  ASSERT_EQ(ids.size(), static_cast<size_t>(3 * kBatch * kSequence));
  ASSERT_EQ(labels.size(), ids.size());
  const std::vector<float> x = tensor("x");
  for (size_t k = 0; k < ids.size(); ++k) {
    EXPECT_EQ(ids[k], ids_[k]);
    EXPECT_EQ(labels[k], ids_[k + 1]);
    EXPECT_EQ(x[k * kWidth], embed_[static_cast<size_t>(ids_[k] * kWidth)]);
  }
  ASSERT_EQ(predict("--batch 2 --batches 3 --value input_ids").code, 0);  // with nothing to compute
  EXPECT_EQ(tensor<int64_t>("input_ids"), ids);
}

TEST_F(Predict, SamplesThatFillNoBatchAreTold) {
  const Outcome o = predict("--batch 100 --value x");  // of 166 windows
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, testing::HasSubstr("the last 66 of 166 samples do not fill a batch of 100 and are left out"));
  EXPECT_EQ(tensor("x").size(), static_cast<size_t>(100 * kSequence * kWidth));
}

TEST_F(Predict, PicturesAtRandomAreTold) {
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {1, 3, 8, 8});
  add_floats(g, "w", {1}, {1.0f});
  add_node(g, "Mul", {"x", "w"}, {"y"});
  add_int(add_node(g, "ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  add_value(g->add_output(), "loss", {});
  std::filesystem::create_directories(out_ / "pictures/a");
  std::filesystem::copy_file(std::string(PARTITA_TEST_DATA) + "/images/colour.png", out_ / "pictures/a/1.png");
  const std::string command =
      cat("predict ", out_.write("pictures.onnx", m.SerializeAsString()), " --train ",
          out_.write("pictures.yaml", "loss: {kind: output}\ndata: {images: {crop: random, flip: 0.5}}\n"), " --data ",
          out_ / "pictures", " --value x -o ", out_ / "values.safetensors");
  EXPECT_THAT(run_partita(command).text, HasSubstr("warning: pictures are cropped or flipped at random"));
  EXPECT_THAT(run_partita(command + " --set 'data.images={crop: center}'").text, testing::Not(HasSubstr("warning")));
}

TEST_F(Predict, WithoutAValueItIsTheScoresOfTheLoss) {
  const Outcome o = predict("--batch 5 --batches 1");  // other samples at a time than the export has
  ASSERT_EQ(o.code, 0) << o.text;
  const std::vector<float> scores = tensor("scores");
  ASSERT_EQ(scores.size(), static_cast<size_t>(5 * kSequence * kIds));
  EXPECT_NEAR(scores[kIds + 4], score(ids_[1], 4), 1e-5);
}

TEST_F(Predict, GenerateGoesOnByWhatWasTrained_FromAFileAndFromCheckpoints) {
  // After each id comes one other: what a table can learn.
  std::string bytes;
  for (int k = 0, id = 2; k < 2000; ++k, id = (id * 3 + 1) % 7) bytes += {static_cast<char>(id), 0};
  data_ = out_.write("chain.bin", bytes);
  const std::string recipe = out_.write("train.yaml", "optimizer: {kind: adamw, lr: 0.1}\nbatch: {global: 4}\n");
  const Outcome trained = run_partita("train " + model_ + " --train " + recipe + " --data " + data_ +
                                      ":uint16 --steps 60 --threads 1 --save " + (out_ / "trained.safetensors") +
                                      " --checkpoint " + (out_ / "checkpoints") + " --pin data=2");
  ASSERT_EQ(trained.code, 0) << trained.text;
  std::string expected = "2";
  for (int k = 0, id = 2; k < 12; ++k) expected += "," + std::to_string(id = (id * 3 + 1) % 7);
  const auto generate = [&](const std::string& weights, const std::string& flags) {
    return run_partita("generate " + model_ + " --threads 1 --prompt-ids 2 --tokens 12 --weights " + weights + flags);
  };
  EXPECT_EQ(generate(out_ / "trained.safetensors", " --temperature 0").text, expected + "\n");
  EXPECT_EQ(generate(out_ / "checkpoints", " --top-k 1 --samples 2").text, expected + "\n---\n" + expected + "\n");
  const Outcome untrained =
      run_partita("generate " + model_ + " --prompt-ids 2 --tokens 12 --temperature 0 --threads 1");
  EXPECT_EQ(untrained.code, 0);
  EXPECT_NE(untrained.text, expected + "\n");
}

TEST_F(Predict, BadInputIsRefused) {
  const Outcome value = predict("--value logit");
  EXPECT_EQ(value.code, 2);
  EXPECT_THAT(value.text, AllOf(HasSubstr("'logit'"), HasSubstr("'loss'")));
  const auto generate = [&](const std::string& flags) { return run_partita("generate " + model_ + " " + flags); };
  EXPECT_THAT(generate("--prompt-ids 3,x").text, HasSubstr("464,3290"));
  EXPECT_THAT(generate("--prompt-ids 3,9").text, HasSubstr("token 9: the model knows ids of 0 to 8"));
  EXPECT_THAT(generate("").text, HasSubstr("--prompt TEXT"));
  EXPECT_THAT(generate("--prompt-ids 1 --value loss").text, HasSubstr("expected scores"));
  EXPECT_THAT(generate("--prompt-ids 1 --weights nowhere").text, HasSubstr("'nowhere'"));
}

}  // namespace
}  // namespace partita
