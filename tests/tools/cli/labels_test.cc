// Targets made from tokens: the next token, whatever they are called and whoever asks for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

constexpr int64_t kBatch = 4, kSequence = 8, kWidth = 8, kIds = 12;

class Labels : public testing::Test {
 protected:
  // Token after token through a table and a product: what follows each id can be learned, and so can the id itself.
  // With `shift` the loss is inside, as transformers' models have it: labels[i + 1] is predicted from position i.
  std::string model(bool inside, bool shift) {
    onnx::ModelProto m = empty_model();
    onnx::GraphProto* g = m.mutable_graph();
    add_value(g->add_input(), "input_ids", {kBatch, kSequence}, kInt64);
    add_floats(g, "embed", {kIds, kWidth}, draw(kIds * kWidth));
    add_floats(g, "head", {kWidth, kIds}, draw(kWidth * kIds));
    add_node(g, "Gather", {"embed", "input_ids"}, {"x"});
    add_node(g, "MatMul", {"x", "head"}, {"logits"});
    add_value(g->add_output(), "logits", {kBatch, kSequence, kIds});
    if (inside) {
      add_value(g->add_input(), "labels", {kBatch, kSequence}, kInt64);
      std::string labels = "labels";
      if (shift) {
        add_ints(g, "pads", {0, 0, 0, 1}), add_ints(g, "starts", {1}), add_ints(g, "ends", {kSequence + 1});
        add_ints(g, "axes", {1});
        auto* ignored = g->add_initializer();
        ignored->set_name("ignored"), ignored->set_data_type(kInt64), ignored->add_int64_data(-100);
        add_node(g, "Pad", {"labels", "pads", "ignored"}, {"padded"});
        add_node(g, "Slice", {"padded", "starts", "ends", "axes"}, {"shifted"});
        labels = "shifted";
      }
      add_ints(g, "rows", {-1}), add_ints(g, "rows_of_logits", {-1, kIds});
      add_node(g, "Reshape", {labels, "rows"}, {"flat_labels"});
      add_node(g, "Reshape", {"logits", "rows_of_logits"}, {"flat_logits"});
      add_int(add_node(g, "SoftmaxCrossEntropyLoss", {"flat_logits", "flat_labels"}, {"loss"}), "ignore_index", -100);
      add_value(g->add_output(), "loss", {});
    }
    return out_.write("model.onnx", m.SerializeAsString());
  }
  // The loss after enough steps for what follows an id to be known: an even choice of two.
  double trained(const std::string& model, const std::string& recipe) {
    std::filesystem::remove(out_ / "m.jsonl");
    const Outcome o = run_partita(
        "train " + model + " --train " + out_.write("train.yaml", "optimizer: {kind: adamw, lr: 0.05}\n" + recipe) +
        " --data " + data_ + ":uint16 --steps 120 --threads 1 --metrics " + (out_ / "m.jsonl"));
    EXPECT_EQ(o.code, 0) << o.text;
    said_ = o.text;
    const std::vector<double> losses = read_losses(out_ / "m.jsonl");
    double last = 0;
    for (size_t k = losses.size() - 10; k < losses.size(); ++k) last += losses[k] / 10;
    return last;
  }
  std::vector<float> draw(int64_t count) {
    std::vector<float> values;
    for (int64_t k = 0; k < count; ++k) values.push_back(std::normal_distribution<float>(0, 0.3f)(random_));
    return values;
  }
  // After id i comes i + 1 or i + 2, by a coin.
  std::string tokens() {
    std::vector<uint16_t> ids = {0};
    for (int k = 0; k < 6000; ++k)
      ids.push_back(static_cast<uint16_t>((ids.back() + 1 + random_() % 2) % static_cast<uint64_t>(kIds)));
    return out_.write("ids.bin", {reinterpret_cast<const char*>(ids.data()), ids.size() * 2});
  }

  TempFolder out_;
  std::mt19937 random_{3};
  std::string data_ = tokens(), said_;
};

constexpr double kCoin = 0.693;  // log 2: nobody predicts the next token better; who copies its input gets to 0

TEST_F(Labels, ATargetIsTheNextToken_WhateverItsName) {
  for (const char* name : {"labels", "target"}) {
    const double loss = trained(model(false, false),
                                std::string("loss: {kind: cross_entropy, output: logits, target: ") + name + "}\n");
    EXPECT_NEAR(loss, kCoin, 0.15) << name;
    EXPECT_THAT(said_, HasSubstr(std::string("'") + name + "': the next token"));
  }
}

TEST_F(Labels, AnInputThatIsTheTarget_IsTheNextTokenToo) {
  for (bool shift : {false, true}) {  // what the graph would do with it for its own loss does not count
    EXPECT_NEAR(trained(model(true, shift), "loss: {kind: cross_entropy, output: logits, target: labels}\n"), kCoin,
                0.15);
    EXPECT_THAT(said_, HasSubstr("'labels': the next token"));
  }
}

TEST_F(Labels, OfALossInside_AreShiftedOnce) {
  EXPECT_NEAR(trained(model(true, false), "loss: {kind: output, output: loss}\n"), kCoin, 0.15);
  EXPECT_THAT(said_, HasSubstr("'labels': the next token"));
  EXPECT_NEAR(trained(model(true, true), "loss: {kind: output, output: loss}\n"), kCoin, 0.15);
  EXPECT_THAT(said_, HasSubstr("'labels': the tokens; the model compares them with the next ones"));
  EXPECT_THAT(said_, HasSubstr("outputs of the model that no loss is made of, left out: 'logits'"));
}

// Evaluation's data go by the same rule, and columns that are given say what an input is, not where it begins.
TEST_F(Labels, OfEvaluationAndOfGivenColumns) {
  const std::string recipe =
      "loss: {kind: cross_entropy, output: logits, target: labels}\ndata: {columns: {labels: labels}}\n"
      "evaluate: {every: 60, data: {path: '" +
      data_ + "', dtype: uint16}}\n";
  EXPECT_NEAR(trained(model(false, false), recipe), kCoin, 0.15);
  EXPECT_THAT(said_, HasSubstr("note: the last 2 of the 750 samples to evaluate fill no batch of 4 and are left out"));
  const std::string lines = TempFolder::read(out_ / "m.jsonl");
  const size_t at = lines.rfind("\"evaluation_loss\":");
  ASSERT_NE(at, std::string::npos);
  EXPECT_NEAR(std::stod(lines.substr(at + 18)), kCoin, 0.15);
}

TEST_F(Labels, ATargetOfAnotherShapeIsRefused) {
  const Outcome o = run_partita("train " + model(true, false) + " --train " +
                                out_.write("train.yaml", "loss: {kind: mse, output: logits, target: labels}\n") +
                                " --data " + data_ + ":uint16 --steps 1");
  EXPECT_EQ(o.code, 2) << o.text;
  EXPECT_THAT(o.text, HasSubstr("the model's input 'labels' is i64[4,8]"));
}

}  // namespace
}  // namespace partita
