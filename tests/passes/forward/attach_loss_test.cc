// Losses and metrics against their formulas, written out here by themselves.
#include "passes/forward/attach_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "ir/recipe/read_recipe.h"
#include "passes/forward/join_teacher.h"

namespace partita {
namespace {

using testing::HasSubstr;
using Rows = std::vector<std::vector<double>>;

constexpr int kRows = 5, kClasses = 4;

Rows some_rows(int seed, int columns = kClasses) {
  Rows rows(kRows, std::vector<double>(static_cast<size_t>(columns)));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < rows[i].size(); ++j)
      rows[i][j] = 2 * std::sin(1.7 * static_cast<double>(i) + 3.1 * static_cast<double>(j) + seed);
  }
  return rows;
}

const std::vector<double> kTargets = {0, 3, -1, 2, 1};  // -1 is ignored

// A model whose outputs are what it is given: "logits" and "other" [5, 4], "scale" [], "counts" [5] i64.
Graph model() {
  Builder b;
  for (const char* name : {"logits", "other"}) b.output(name, b.input(name, {DType::kF32, {kRows, kClasses}}));
  b.output("scale", b.input("scale", {DType::kF32, {}}));
  b.output("counts", b.input("counts", {DType::kI64, {kRows}}));
  return std::move(b).finish();
}

Graph attached(const Graph& graph, const std::string& recipe) {
  const PassContext context{.recipe = *parse_recipe(recipe, "train.yaml"), .training = {}};
  auto made = attach_loss(graph, context);
  EXPECT_TRUE(made.ok()) << recipe << made.status();
  return *std::move(made);
}

// The outputs by their names, of inputs by theirs.
std::map<std::string, double> evaluated(const Graph& graph, const std::map<std::string, std::vector<double>>& inputs) {
  std::map<ValueId, Tensor> feeds;
  for (const GraphInput& in : graph.inputs) {
    Tensor t = Tensor::zeros(graph.type(in.value));
    const std::vector<double>& given = inputs.at(in.name);
    if (is_float(t.type.dtype))
      t.f = given;
    else
      std::transform(given.begin(), given.end(), t.i.begin(), [](double x) { return static_cast<int64_t>(x); });
    feeds[in.value] = std::move(t);
  }
  const std::vector<Tensor> results = evaluate_graph(graph, feeds);
  std::map<std::string, double> out;
  for (size_t k = 0; k < graph.outputs.size(); ++k) out[graph.outputs[k].name] = results[k].f.at(0);
  return out;
}

std::vector<double> flat(const Rows& rows) {
  std::vector<double> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

std::map<std::string, double> report(const std::string& recipe, const std::vector<double>& targets = kTargets) {
  return evaluated(attached(model(), recipe), {{"logits", flat(some_rows(0))},
                                               {"other", flat(some_rows(1))},
                                               {"scale", {3.5}},
                                               {"counts", {1, 2, 3, 4, 5}},
                                               {"target", targets}});
}
double loss(const std::string& recipe, const std::vector<double>& targets = kTargets) {
  return report("loss: {output: logits, " + recipe + "}", targets).at("loss");
}

std::vector<double> log_softmax(std::vector<double> row) {
  double sum = 0;
  for (double x : row) sum += std::exp(x);
  for (double& x : row) x -= std::log(sum);
  return row;
}

// The mean over the rows that count of what `of` says of a row's scores and class.
double mean_of_rows(const std::function<double(const std::vector<double>&, size_t)>& of) {
  double sum = 0, count = 0;
  const Rows rows = some_rows(0);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (kTargets[i] < 0) continue;
    sum += of(rows[i], static_cast<size_t>(kTargets[i])), ++count;
  }
  return sum / count;
}

TEST(AttachLoss, CrossEntropy_SmoothsLabels) {
  const double expected = mean_of_rows([](const std::vector<double>& row, size_t at) {
    const std::vector<double> p = log_softmax(row);
    double even = 0;
    for (double x : p) even -= x / kClasses;
    return -0.9 * p[at] + 0.1 * even;
  });
  EXPECT_NEAR(loss("kind: cross_entropy, ignore_index: -1, label_smoothing: 0.1"), expected, 1e-6);
}

TEST(AttachLoss, CrossEntropy_AddsTheSquaredLogOfTheSum) {
  const double expected = mean_of_rows([](const std::vector<double>& row, size_t at) {
    const double log_sum = row[at] - log_softmax(row)[at];
    return -log_softmax(row)[at] + 0.25 * log_sum * log_sum;
  });
  EXPECT_NEAR(loss("kind: cross_entropy, ignore_index: -1, z_loss: 0.25"), expected, 1e-6);
}

TEST(AttachLoss, CrossEntropy_Focal) {
  for (double gamma : {1.0, 1.5, 2.0}) {
    const double expected = mean_of_rows([&](const std::vector<double>& row, size_t at) {
      const double p = std::exp(log_softmax(row)[at]);
      return -std::pow(1 - p, gamma) * std::log(p);
    });
    EXPECT_NEAR(loss("kind: cross_entropy, ignore_index: -1, focal: {gamma: " + std::to_string(gamma) + "}"), expected,
                1e-6);
  }
}

// torchvision.ops.sigmoid_focal_loss's.
TEST(AttachLoss, BinaryCrossEntropy_Focal) {
  const std::vector<double> x = flat(some_rows(0));
  std::vector<double> targets(x.size());
  double expected = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    targets[k] = k % 3 == 0 ? 1 : 0;
    const double p = 1 / (1 + std::exp(-x[k])), own = targets[k] == 1 ? p : 1 - p;
    expected -= (targets[k] == 1 ? 0.25 : 0.75) * std::pow(1 - own, 2) * std::log(own) / static_cast<double>(x.size());
  }
  EXPECT_NEAR(loss("kind: bce_with_logits, focal: {gamma: 2, alpha: 0.25}", targets), expected, 1e-6);
}

double contrastive(double scale) {
  const Rows a = some_rows(0), b = some_rows(1);
  const auto unit = [](std::vector<double> row) {
    double squares = 0;
    for (double x : row) squares += x * x;
    for (double& x : row) x /= std::sqrt(squares);
    return row;
  };
  double sum = 0;
  for (bool turned : {false, true}) {
    for (size_t i = 0; i < a.size(); ++i) {
      std::vector<double> alike;
      for (size_t j = 0; j < a.size(); ++j) {
        const auto one = unit(a[turned ? j : i]), other = unit(b[turned ? i : j]);
        double dot = 0;
        for (size_t d = 0; d < one.size(); ++d) dot += one[d] * other[d];
        alike.push_back(scale * dot);
      }
      sum -= log_softmax(alike)[i] / 2;
    }
  }
  return sum / kRows;
}

TEST(AttachLoss, Contrastive_ComparesEverySampleWithAll) {
  EXPECT_NEAR(loss("kind: contrastive, with: other"), contrastive(1 / 0.07), 1e-6);
  EXPECT_NEAR(loss("kind: contrastive, with: other, temperature: 0.5"), contrastive(2), 1e-6);
  EXPECT_NEAR(loss("kind: contrastive, with: other, logit_scale: scale"), contrastive(3.5), 1e-6);
}

// x -> scores = x w, beside the model: its input is the model's, its weight is frozen.
TEST(AttachLoss, Kl_TakesTheTeachersScores) {
  Builder b;
  const ValueId x = b.input("logits", {DType::kF32, {kRows, kClasses}});
  const ValueId w =
      b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = InitialRule{.a = 2}},
              {DType::kF32, {kClasses}});
  b.output("scores", b.mul(x, w));
  const auto joined = join_teacher(model(), std::move(b).finish(), {"scores"});
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->states[0].name, "teacher/w");
  EXPECT_EQ(joined->states[0].kind, StateKind::kFrozen);
  EXPECT_EQ(joined->inputs.size(), 4u);

  const auto of_row = [](const std::vector<double>& row, double temperature) {
    std::vector<double> teacher = row, own = row;
    for (double& t : teacher) t *= 2 / temperature;
    for (double& s : own) s /= temperature;
    const std::vector<double> p = log_softmax(teacher), q = log_softmax(own);
    double sum = 0;
    for (size_t c = 0; c < p.size(); ++c) sum += std::exp(p[c]) * (p[c] - q[c]);
    return sum * temperature * temperature;
  };
  const auto value = [&](const std::string& keys) {
    Graph g =
        attached(*joined, "loss: {kind: kl, output: logits, teacher: t.onnx, teacher_output: scores" + keys + "}");
    std::map<ValueId, Tensor> feeds;
    for (const State& s : g.states)
      feeds[s.value] = Tensor::zeros(g.type(s.value)), feeds[s.value].f.assign(kClasses, 2);
    for (const GraphInput& in : g.inputs) {
      Tensor t = Tensor::zeros(g.type(in.value));
      if (in.name == "logits") t.f = flat(some_rows(0));
      if (in.name == "target") t.i.assign({0, 3, -1, 2, 1});
      feeds[in.value] = t;
    }
    return evaluate_graph(g, feeds)[0].f.at(0);
  };
  double all = 0;
  for (const auto& row : some_rows(0)) all += of_row(row, 1) / kRows;
  EXPECT_NEAR(value(""), all, 1e-6);
  EXPECT_NEAR(value(", temperature: 3, target: target, ignore_index: -1"),
              mean_of_rows([&](const std::vector<double>& row, size_t) { return of_row(row, 3); }), 1e-6);
}

TEST(AttachLoss, SeveralLosses_AreAddedUpAndReported) {
  const auto r = report(
      "loss:\n- {kind: cross_entropy, output: logits, ignore_index: -1, name: labels}\n"
      "- {kind: output, output: scale, weight: 0.5}\n- {kind: contrastive, output: logits, with: other}\n");
  const double labels = mean_of_rows([](const auto& row, size_t at) { return -log_softmax(row)[at]; });
  EXPECT_EQ(r.size(), 4u);
  EXPECT_NEAR(r.at("metric/mean/loss_labels"), labels, 1e-6);
  EXPECT_NEAR(r.at("metric/mean/loss_output"), 3.5, 1e-6);
  EXPECT_NEAR(r.at("metric/mean/loss_contrastive"), contrastive(1 / 0.07), 1e-6);
  EXPECT_NEAR(r.at("loss"), labels + 1.75 + contrastive(1 / 0.07), 1e-6);
}

TEST(AttachLoss, Metrics) {
  const auto r = report(
      "loss: {kind: cross_entropy, output: logits, ignore_index: -1}\nmetrics:\n"
      "  top1: {kind: accuracy, output: logits, ignore_index: -1}\n"
      "  top3: {kind: accuracy, output: logits, ignore_index: -1, top: 3}\n"
      "  all: {kind: accuracy, output: logits, top: 4}\n"  // the target -1 is no class, and counts
      "  counts: {output: counts, reduce: sum}\n  mean: {output: counts}\n  scale: {output: scale}\n");
  const auto within = [](size_t top) {
    return mean_of_rows([&](const std::vector<double>& row, size_t at) {
      return std::count_if(row.begin(), row.end(), [&](double x) { return x > row[at]; }) < static_cast<long>(top);
    });
  };
  EXPECT_NEAR(r.at("metric/mean/top1"), within(1), 1e-6);
  EXPECT_NEAR(r.at("metric/mean/top3"), within(3), 1e-6);
  EXPECT_LT(within(1), within(3));
  EXPECT_NEAR(r.at("metric/mean/all"), 0.8, 1e-6);
  EXPECT_EQ(r.at("metric/sum/counts"), 15);
  EXPECT_NEAR(r.at("metric/mean/mean"), 3, 1e-6);
  EXPECT_EQ(r.at("metric/mean/scale"), 3.5);
}

// Scores that are no numbers are right of nothing.
TEST(AttachLoss, Accuracy_OfNoNumbers) {
  const Graph g = attached(model(), "loss: {output: scale}\nmetrics: {a: {kind: accuracy, output: logits}}");
  const auto r = evaluated(g, {{"logits", std::vector<double>(kRows * kClasses, std::nan(""))},
                               {"other", flat(some_rows(1))},
                               {"scale", {1}},
                               {"counts", {1, 1, 1, 1, 1}},
                               {"target", {0, 1, 2, 3, 0}}});
  EXPECT_EQ(r.at("metric/mean/a"), 0);
}

// A model in 16 bits, or with an output in them, reports numbers of 32.
TEST(AttachLoss, ReportsAreWide) {
  Builder b;
  for (const char* name : {"one", "other"}) b.output(name, b.input(name, {DType::kF16, {}}));
  const Graph g = attached(std::move(b).finish(), "loss: {output: one}\nmetrics: {a: {output: other}}");
  for (const GraphOutput& o : g.outputs) EXPECT_EQ(g.type(o.value), (TensorType{DType::kF32, {}})) << o.name;
}

// Of the last of three runs, and nothing of the others.
TEST(AttachLoss, LastOfAStep) {
  PassContext context{
      .recipe = *parse_recipe("loss: {output: scale}\nmetrics: {a: {output: counts, reduce: last}}", ""),
      .training = {}};
  context.micro_batches = 3;
  const auto made = attach_loss(model(), context);
  ASSERT_TRUE(made.ok()) << made.status();
  for (const double run : {0, 1, 2}) {
    const auto r = evaluated(*made, {{"logits", flat(some_rows(0))},
                                     {"other", flat(some_rows(1))},
                                     {"scale", {1}},
                                     {"counts", {1, 2, 3, 4, 5}},
                                     {"partita.micro_batch", {run}}});
    EXPECT_EQ(r.at("metric/last/a"), run == 2 ? 5 : 0);
  }
}

TEST(AttachLoss, Refusals) {
  const auto said = [](const std::string& recipe) {
    auto r = parse_recipe(recipe, "train.yaml");
    if (!r.ok()) return std::string(r.status().message());
    return std::string(attach_loss(model(), {.recipe = *r, .training = {}}).status().message());
  };
  EXPECT_THAT(said("loss: {kind: contrastive, output: logits}"), HasSubstr("kind contrastive needs 'with'"));
  EXPECT_THAT(said("loss: {kind: kl, output: logits}"), HasSubstr("kind kl needs 'teacher'"));
  EXPECT_THAT(said("loss: {kind: mse, label_smoothing: 0.1}"), HasSubstr("kind mse has no 'label_smoothing'"));
  EXPECT_THAT(said("loss: {kind: cross_entropy, label_smoothing: 2}"), HasSubstr("a number in [0, 1]"));
  EXPECT_THAT(said("loss: {kind: cross_entropy, focal: {alpha: 0.5}}"), HasSubstr("alpha weighs the two classes"));
  EXPECT_THAT(said("loss: {kind: contrastive, output: logits, with: scale}"),
              HasSubstr("two outputs [samples, features]"));
  EXPECT_THAT(said("loss: {kind: contrastive, output: logits, with: other, logit_scale: logits}"),
              HasSubstr("loss.logit_scale: expected a scalar"));
  EXPECT_THAT(said("loss: [{kind: mse}, {kind: mse}]"), HasSubstr("another 'name'"));
  EXPECT_THAT(said("loss: [{kind: mse}, {kind: l1, reduction: sum}]"), HasSubstr("reduction mean as loss[0] has"));
  EXPECT_THAT(said("loss: {output: scale}\nmetrics: {a: {output: nothing}}"),
              HasSubstr("metrics.a.output: the model has no output 'nothing'"));
  EXPECT_THAT(said("loss: {output: scale}\nmetrics: {a: {kind: accuracy, output: logits, top: 9}}"),
              HasSubstr("metrics.a.top: expected at most the 4 classes"));
  EXPECT_THAT(said("loss: {output: scale}\nmetrics: {a: {output: scale, reduce: last}}"),
              HasSubstr("metrics.a.reduce: last: 'scale' is one number of several samples"));
  EXPECT_THAT(said("loss: {output: scale}\nmetrics: {'a b': {output: scale}}"),
              HasSubstr("expected a name of letters"));
}

}  // namespace
}  // namespace partita
