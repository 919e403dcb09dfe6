// Losses of several terms and metrics, under every layout as on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "ir/recipe/read_recipe.h"
#include "nlohmann/json.hpp"
#include "runtime/metrics/metrics.h"
#include "tests/support/command.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

constexpr int kFeatures = 6, kHidden = 8, kClasses = 5, kEmbedding = 4;

// Small numbers that no two weights share.
std::vector<float> weights(int count, int seed) {
  std::vector<float> w(static_cast<size_t>(count));
  for (size_t k = 0; k < w.size(); ++k) w[k] = 0.7F * std::sin(1.3F * static_cast<float>(k) + static_cast<float>(seed));
  return w;
}

// x [4, 6] -> logits [4, 5], image and text [4, 4], norm [].
onnx::ModelProto model(int seed) {
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {4, kFeatures});
  add_value(g->add_output(), "logits", {4, kClasses});
  add_value(g->add_output(), "image", {4, kEmbedding});
  add_value(g->add_output(), "text", {4, kEmbedding});
  add_value(g->add_output(), "norm", {});
  add_floats(g, "first.weight", {kFeatures, kHidden}, weights(kFeatures * kHidden, seed));
  add_floats(g, "second.weight", {kHidden, kHidden}, weights(kHidden * kHidden, seed + 1));
  add_floats(g, "head.weight", {kHidden, kClasses}, weights(kHidden * kClasses, seed + 2));
  add_floats(g, "image.weight", {kHidden, kEmbedding}, weights(kHidden * kEmbedding, seed + 3));
  add_floats(g, "text.weight", {kHidden, kEmbedding}, weights(kHidden * kEmbedding, seed + 4));
  add_node(g, "MatMul", {"x", "first.weight"}, {"a"}, "first");
  add_node(g, "Tanh", {"a"}, {"b"}, "act1");
  add_node(g, "MatMul", {"b", "second.weight"}, {"c"}, "second");
  add_node(g, "Tanh", {"c"}, {"h"}, "act2");
  add_node(g, "MatMul", {"h", "head.weight"}, {"logits"}, "head");
  add_node(g, "MatMul", {"h", "image.weight"}, {"image"}, "image");
  add_node(g, "MatMul", {"b", "text.weight"}, {"text"}, "text");
  add_node(g, "Mul", {"h", "h"}, {"squares"}, "squares");
  add_int(add_node(g, "ReduceMean", {"squares"}, {"norm"}, "norm"), "keepdims", 0);
  return m;
}

class Losses : public testing::Test {
 protected:
  using Values = std::map<std::string, std::vector<double>>;

  void SetUp() override {
    save("model.onnx", model(0));
    save("teacher.onnx", model(7));
  }
  void save(const std::string& name, const onnx::ModelProto& m) {
    std::ofstream file(out_ / name, std::ios::binary);
    ASSERT_TRUE(m.SerializeToOstream(&file));
  }
  std::string partita(const std::string& arguments, int code = 0) {
    const Outcome o = run_partita(arguments);
    EXPECT_EQ(o.code, code) << arguments << "\n" << o.text;
    return o.text;
  }
  std::string recipe(const std::string& loss) {
    const std::string data = "{kind: synthetic, vocab: 5}";
    out_.write("train.yaml", cat(loss, "optimizer: {kind: adamw, lr: 0.02}\nbatch: {global: 8}\ndata: ", data,
                                 "\nevaluate: {every: 2, batches: 2, data: ", data, "}\n"));
    return cat(out_ / "model.onnx", " --train ", out_ / "train.yaml ");
  }
  // What each of three steps reports.
  Values trained(const std::string& layout) {
    partita(
        cat("compile ", out_ / "model.onnx", " --train ", out_ / "train.yaml ", layout, " --quiet -o ", out_ / "b"));
    partita(cat("verify ", out_ / "b", " --model ", out_ / "model.onnx", " --train ", out_ / "train.yaml --quiet",
                layout == "--ranks 1" ? " --numeric" : ""));
    partita(cat("run ", out_ / "b", " --steps 3 --threads 1 --quiet --metrics ", out_ / "m.jsonl"));
    Values values;
    std::ifstream lines(out_ / "m.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json fields = nlohmann::json::parse(line);
      for (const auto& [name, value] : fields.items()) {
        const bool reported = name.starts_with("loss") || name.starts_with("evaluation") || !name.find("m_");
        if (reported) values[name].push_back(value.get<double>());
      }
    }
    return values;
  }
  void expect_alike(const std::vector<std::string>& layouts, const std::vector<std::string>& names) {
    const Values one = trained("--ranks 1");
    for (const std::string& name : names) {
      ASSERT_TRUE(one.contains(name)) << name;
      EXPECT_EQ(one.at(name).size(), name.starts_with("evaluation") ? 2U : 3U) << name;
    }
    for (const std::string& layout : layouts) {
      SCOPED_TRACE(layout);
      const Values many = trained(layout);
      ASSERT_EQ(many.size(), one.size());
      for (const auto& [name, values] : one) {
        ASSERT_EQ(many.at(name).size(), values.size()) << name;
        for (size_t k = 0; k < values.size(); ++k) EXPECT_NEAR(many.at(name)[k], values[k], 2e-6) << name << " " << k;
      }
    }
  }

  TempFolder out_;
};

constexpr const char* kTerms =
    "- {kind: cross_entropy, output: logits, label_smoothing: 0.1, z_loss: 0.01, name: labels}\n"
    "- {kind: output, output: norm, weight: 0.1}\n";
constexpr const char* kMetrics =
    "metrics:\n  m_top2: {kind: accuracy, output: logits, top: 2}\n  m_norm: {output: norm}\n"
    "  m_sum: {output: text, reduce: sum}\n"
    "  m_last: {output: text, reduce: last}\n";

TEST_F(Losses, OfSeveralTermsAndATeacher_AreOneRanks) {
  recipe(cat("loss:\n", kTerms, "- {kind: kl, output: logits, teacher: ", out_ / "teacher.onnx",
             ", temperature: 2, weight: 0.5}\n", kMetrics));
  expect_alike({"--ranks 4 --pin data=2 --pin tensor=2", "--ranks 2 --like zero3 --pin micro_batch=2",
                "--ranks 2 --pin pipeline=2 --pin micro_batch=4"},
               {"loss", "loss_labels", "loss_output", "loss_kl", "m_top2", "m_norm", "m_sum", "m_last",
                "evaluation_loss", "evaluation_m_top2", "evaluation_loss_kl", "evaluation_m_sum", "evaluation_m_last"});
}

// Eight samples at once, of a graph that was exported with four.
TEST_F(Losses, ThatCompareSamples_AreOfTheWholeBatch) {
  recipe(cat("loss:\n", kTerms, "- {kind: contrastive, output: image, with: text}\n", kMetrics));
  expect_alike({"--ranks 4 --like zero1"}, {"loss", "loss_contrastive", "m_top2", "evaluation_loss_contrastive"});
}

// The columns of a metrics file are the runtime's; a recipe's metric may not take one of them.
TEST_F(Losses, LeaveTheNamesThatEveryStepReports) {
  auto sink = runtime::make_csv_sink(out_ / "m.csv");
  ASSERT_TRUE(sink.ok() && (*sink)->write({}).ok());
  const std::string text = TempFolder::read(out_ / "m.csv");
  const std::vector<std::string> columns = absl::StrSplit(text.substr(0, text.find('\n')), ',');
  ASSERT_GE(columns.size(), 18u);
  for (const std::string& name : columns) {
    auto recipe =
        parse_recipe(cat("loss: {kind: cross_entropy}\nmetrics: {", name, ": {output: norm}}\n"), "train.yaml");
    EXPECT_THAT(recipe.status().message(), HasSubstr(cat("every step reports '", name, "' of its own")));
  }
}

TEST_F(Losses, SayWhatIsMissing) {
  EXPECT_THAT(
      partita(cat("compile ", recipe("loss: {kind: cross_entropy, output: logits}\nmetrics: {loss: {output: norm}}\n"),
                  "-o ", out_ / "b"),
              2),
      HasSubstr("every step reports 'loss' of its own"));
  EXPECT_THAT(
      partita(cat("compile ", recipe(cat("loss: {kind: kl, output: logits, teacher: ", out_ / "no.onnx", "}\n")), "-o ",
                  out_ / "b"),
              2),
      HasSubstr("loss.teacher"));
}

}  // namespace
}  // namespace partita
