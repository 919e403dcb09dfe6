// A step of more samples than the model was exported with: its loss is that of all of them, or it is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "runtime/files/npz.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kExported = 4, kStep = 8, kIn = 3, kOut = 5;
using Matrix = std::vector<std::vector<double>>;

class WholeBatch : public testing::Test {
 protected:
  Matrix draw(int rows, int columns) {
    Matrix m(static_cast<size_t>(rows), std::vector<double>(static_cast<size_t>(columns)));
    for (auto& row : m) {
      for (double& x : row) x = static_cast<float>(std::normal_distribution<double>(0, 1)(random_));
    }
    return m;
  }
  static std::vector<float> flat(const Matrix& m) {
    std::vector<float> all;
    for (const auto& row : m) all.insert(all.end(), row.begin(), row.end());
    return all;
  }
  static Matrix times(const Matrix& a, const Matrix& b) {
    Matrix out(a.size(), std::vector<double>(b[0].size(), 0));
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t k = 0; k < b.size(); ++k) {
        for (size_t j = 0; j < b[k].size(); ++j) out[i][j] += a[i][k] * b[k][j];
      }
    }
    return out;
  }
  static double log_sum(const std::vector<double>& row) {
    double sum = 0;
    for (double x : row) sum += std::exp(x);
    return std::log(sum);
  }

  std::string write(const onnx::ModelProto& model) { return out_.write("model.onnx", model.SerializeAsString()); }
  Outcome train(const std::string& model, const std::string& recipe, const std::string& flags = "") {
    std::filesystem::remove(out_ / "m.jsonl");
    const std::string file = out_.write("train.yaml", recipe);
    return run_partita("train " + model + " --train " + file + " --data " + (out_ / "data.npz") +
                       " --steps 1 --threads 1 --metrics " + (out_ / "m.jsonl") + " " + flags);
  }
  double loss() { return read_losses(out_ / "m.jsonl").at(0); }

  // What tells a sample's own like from the others': positions 0, 1, … as a constant; the product of the two; a matrix
  // with ones on its diagonal as a constant.
  enum class Own { kRange, kProduct, kDiagonal };

  // A sample of a has its like in b: the mean over samples of log sum exp of its products with all of b, less that with
  // its own.
  std::string contrastive(Own own) {
    onnx::ModelProto m = empty_model();
    onnx::GraphProto* g = m.mutable_graph();
    for (const char* name : {"a", "b"}) add_value(g->add_input(), name, {kExported, kIn});
    add_value(g->add_output(), "loss", {});
    add_floats(g, "w", {kIn, kOut}, flat(w_));
    add_node(g, "MatMul", {"a", "w"}, {"ea"});
    add_node(g, "MatMul", {"b", "w"}, {"eb"});
    add_node(g, "Transpose", {"eb"}, {"ebt"});
    add_node(g, "MatMul", {"ea", "ebt"}, {"alike"}, "compare");
    if (own == Own::kRange) {
      add_ints(g, "positions", {0, 1, 2, 3});
      add_node(g, "SoftmaxCrossEntropyLoss", {"alike", "positions"}, {"loss"});
    } else {
      add_ints(g, "columns", {1});
      add_int(add_node(g, "ReduceLogSumExp", {"alike", "columns"}, {"all"}), "keepdims", 0);
      if (own == Own::kDiagonal) {
        auto* diagonal = g->add_node();
        diagonal->set_op_type("Constant"), diagonal->add_output("diagonal");
        auto* value = diagonal->add_attribute();
        value->set_name("value"), value->set_type(onnx::AttributeProto::TENSOR);
        value->mutable_t()->set_data_type(kFloat);
        for (int k = 0; k < 2; ++k) value->mutable_t()->add_dims(kExported);
        for (int k = 0; k < kExported * kExported; ++k)
          value->mutable_t()->add_float_data(k % (kExported + 1) == 0 ? 1.f : 0.f);
        add_node(g, "Mul", {"alike", "diagonal"}, {"product"});
      } else {
        add_node(g, "Mul", {"ea", "eb"}, {"product"});
      }
      add_int(add_node(g, "ReduceSum", {"product", "columns"}, {"own"}), "keepdims", 0);
      add_node(g, "Sub", {"all", "own"}, {"row"});
      add_int(add_node(g, "ReduceMean", {"row"}, {"loss"}), "keepdims", 0);
    }
    const std::vector<float> a = flat(a_), b = flat(b_);
    EXPECT_TRUE(runtime::write_npz(out_ / "data.npz", {{"a", DType::kF32, {kStep, kIn}, std::as_bytes(std::span(a))},
                                                       {"b", DType::kF32, {kStep, kIn}, std::as_bytes(std::span(b))}})
                    .ok());
    return write(m);
  }
  double contrastive_loss() {
    const Matrix ea = times(a_, w_), eb = times(b_, w_);
    double sum = 0;
    for (size_t i = 0; i < ea.size(); ++i) {
      std::vector<double> row;
      for (const auto& other : eb) {
        row.push_back(0);
        for (size_t k = 0; k < other.size(); ++k) row.back() += ea[i][k] * other[k];
      }
      sum += log_sum(row) - row[i];
    }
    return sum / kStep;
  }

  TempFolder out_;
  std::mt19937 random_{7};
  Matrix w_ = draw(kIn, kOut), a_ = draw(kStep, kIn), b_ = draw(kStep, kIn);
};

const char kPlain[] = "optimizer: {kind: sgd, lr: 0.1}\nbatch: {global: 8}\n";

TEST_F(WholeBatch, ContrastiveLossOfAllSamples_OnAnyRanks) {
  const std::string model = contrastive(Own::kProduct);
  for (const char* flags : {"", "--ranks 2", "--ranks 4 --like zero3"}) {
    Outcome o = train(model, kPlain, flags);
    ASSERT_EQ(o.code, 0) << o.text;
    EXPECT_NEAR(loss(), contrastive_loss(), 1e-5) << flags;
    EXPECT_THAT(o.text, AllOf(HasSubstr("all samples together, which meet in MatMul 'compare'"), HasSubstr("8 samples"),
                              HasSubstr("in place of the 4")));
  }
  Outcome cut = train(model, kPlain, "--pin micro_batch=4");
  EXPECT_EQ(cut.code, 2) << cut.text;
  EXPECT_THAT(cut.text, HasSubstr("micro-batches"));
}

TEST_F(WholeBatch, WhatTheExportFixed_IsRefusedWithWhatToDo) {
  for (Own own : {Own::kRange, Own::kDiagonal}) {
    const std::string model = contrastive(own);
    Outcome o = train(model, kPlain);
    EXPECT_EQ(o.code, 2) << o.text;
    EXPECT_THAT(o.text, AllOf(HasSubstr("2 runs of the graph, 4 samples each"), HasSubstr("MatMul 'compare'"),
                              HasSubstr("export the model with a batch of 8"), HasSubstr("batch: {global: 4}")));
    EXPECT_EQ(train(model, "batch: {global: 4}\n").code, 0);
  }
}

// Targets that do not count are no part of the mean: 1 of the first run's 4 samples counts, and all of the second's.
class CountedTargets : public WholeBatch {
 protected:
  std::string classifier(bool loss_inside) {
    onnx::ModelProto m = empty_model();
    onnx::GraphProto* g = m.mutable_graph();
    add_value(g->add_input(), "x", {kExported, kIn});
    add_floats(g, "w", {kIn, kOut}, flat(w_));
    add_node(g, "MatMul", {"x", "w"}, {"logits"});
    if (loss_inside) {
      add_value(g->add_input(), "target", {kExported}, kInt64);
      add_int(add_node(g, "SoftmaxCrossEntropyLoss", {"logits", "target"}, {"loss"}), "ignore_index", -100);
      add_value(g->add_output(), "loss", {});
    } else {
      add_value(g->add_output(), "logits", {kExported, kOut});
    }
    const std::vector<float> x = flat(a_);
    EXPECT_TRUE(
        runtime::write_npz(out_ / "data.npz", {{"x", DType::kF32, {kStep, kIn}, std::as_bytes(std::span(x))},
                                               {"target", DType::kI64, {kStep}, std::as_bytes(std::span(target_))}})
            .ok());
    return write(m);
  }
  double sum(int64_t* count) {
    const Matrix logits = times(a_, w_);
    double all = 0;
    *count = 0;
    for (size_t i = 0; i < target_.size(); ++i) {
      if (target_[i] < 0) continue;
      all += log_sum(logits[i]) - logits[i][static_cast<size_t>(target_[i])];
      ++*count;
    }
    return all;
  }
  std::vector<int64_t> target_ = {-100, 2, -100, -100, 0, 1, 4, 3};
};

TEST_F(CountedTargets, AreCountedOverTheStep) {
  int64_t count = 0;
  const double total = sum(&count);
  for (bool inside : {false, true}) {
    const std::string model = classifier(inside),
                      recipe = std::string(kPlain) + (inside ? "" : "loss: {kind: cross_entropy}\n");
    for (const char* flags : {"", "--ranks 2", "--ranks 4", "--pin micro_batch=2", "--ranks 2 --like zero3"}) {
      Outcome o = train(model, recipe, flags);
      ASSERT_EQ(o.code, 0) << o.text;
      EXPECT_NEAR(loss(), total / static_cast<double>(count), 1e-5) << inside << " " << flags;
    }
  }
  ASSERT_EQ(train(classifier(false), std::string(kPlain) + "loss: {kind: cross_entropy, reduction: sum}\n").code, 0);
  EXPECT_NEAR(loss(), total, 1e-5);
}

}  // namespace
}  // namespace partita
