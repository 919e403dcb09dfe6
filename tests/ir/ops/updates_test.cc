// Optimizer updates against formulas written out again, and against steps that PyTorch made.
#include <cmath>
#include <functional>
#include <random>

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/graph/evaluate.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

Tensor vec(std::vector<double> v, DType type = DType::kF64) {
  return {{type, {static_cast<int64_t>(v.size())}}, std::move(v), {}};
}
Tensor number(double v, DType type = DType::kF64) { return {{type, {}}, {v}, {}}; }
Tensor count(int64_t t) { return {{DType::kI64, {}}, {}, {t}}; }
Tensor flag(bool b) { return {{DType::kBool, {}}, {}, {b}}; }

std::vector<std::vector<double>> run(std::string_view op, const Attrs& attrs, const std::vector<Tensor>& inputs) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& t : inputs) pointers.push_back(&t);
  std::vector<std::vector<double>> results;
  for (Tensor& t : evaluate_op(*find_op(op), attrs, pointers)) results.push_back(std::move(t.f));
  return results;
}

absl::Status infer(std::string_view op, const Attrs& attrs, const std::vector<TensorType>& types) {
  return infer_types(*find_op(op), {attrs, types}).status();
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t k = 0; k < found.size(); ++k)
    EXPECT_NEAR(found[k], expected[k], tolerance * (1 + std::fabs(expected[k]))) << "element " << k;
}

// One element: parameter, gradient, two states (the second positive), rate, step.
struct Point {
  double p, g, a, b, lr;
  int64_t t;
};

// Runs `op` on random points, all of one step in one tensor, and compares each with `formula`, which gives the outputs
// of one element. `scalars` are the rank-0 inputs for a step and rate.
void check(std::string_view op, const Attrs& attrs, int states,
           const std::function<std::vector<Tensor>(const Point&)>& scalars,
           const std::function<std::vector<double>(const Point&)>& formula) {
  std::mt19937 rng(7);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0.01, 2);
  for (int64_t t : {0, 1, 2, 50, 3000}) {
    double lr = uniform(rng) / 10;
    std::vector<Point> points;
    std::vector<Tensor> inputs(2 + states, vec(std::vector<double>(5)));
    for (int k = 0; k < 5; ++k) {
      points.push_back({normal(rng), normal(rng), normal(rng), uniform(rng), lr, t});
      inputs[0].f[k] = points[k].p, inputs[1].f[k] = points[k].g;
      if (states > 0) inputs[2].f[k] = points[k].a;
      if (states > 1) inputs[3].f[k] = points[k].b;
    }
    for (Tensor& s : scalars(points[0])) inputs.push_back(std::move(s));
    auto found = run(op, attrs, inputs);
    for (int k = 0; k < 5; ++k) {
      std::vector<double> outputs;
      for (const auto& f : found) outputs.push_back(f[k]);
      SCOPED_TRACE(testing::Message() << op << ", step " << t << ", point " << k);
      expect_near(outputs, formula(points[k]), 1e-12);
    }
  }
}

std::vector<Tensor> rate(const Point& x) { return {number(x.lr)}; }
std::vector<Tensor> rate_and_step(const Point& x) { return {number(x.lr), count(x.t)}; }
// Bias corrections of step t + 1, after `front`.
std::vector<Tensor> with_corrections(std::vector<Tensor> front, const Point& x, double beta1, double beta2) {
  front.push_back(number(1 - std::pow(beta1, x.t + 1)));
  front.push_back(number(1 - std::pow(beta2, x.t + 1)));
  return front;
}

TEST(Updates_Torch, Sgd) {
  check("opt_sgd", {{"weight_decay", 0.2}}, 0, rate,
        [](const Point& x) { return std::vector{x.p - x.lr * (x.g + 0.2 * x.p)}; });
  check("opt_sgd", {}, 0, rate, [](const Point& x) { return std::vector{x.p - x.lr * x.g}; });
}

TEST(Updates_Torch, Momentum) {
  for (int64_t nesterov : {0, 1}) {
    for (double dampening : {0.0, 0.3}) {
      Attrs attrs{{"momentum", 0.9}, {"dampening", dampening}, {"nesterov", nesterov}, {"weight_decay", 0.2}};
      check(
          "opt_momentum", attrs, 1,
          [](const Point& x) {
            return std::vector{number(x.lr), flag(x.t == 0)};
          },
          [&](const Point& x) {
            double g = x.g + 0.2 * x.p, buffer = g;
            if (x.t > 0) buffer = x.a * 0.9 + (1 - dampening) * g;
            return std::vector{x.p - x.lr * (nesterov ? g + 0.9 * buffer : buffer), buffer};
          });
    }
  }
}

TEST(Updates_Torch, Adagrad) {
  Attrs attrs{{"eps", 0.1}, {"weight_decay", 0.2}};
  std::vector<Tensor> in{vec({1, -2}), vec({0.5, 0.25}), vec({0.75, 0}), number(0.1)};
  auto out = run("opt_adagrad", attrs, in);
  auto expected = [](double p, double g0, double s) {
    double g = g0 + 0.2 * p, sum = s + g * g;
    return std::vector{p - 0.1 * g / (std::sqrt(sum) + 0.1), sum};
  };
  auto first = expected(1, 0.5, 0.75), second = expected(-2, 0.25, 0);
  expect_near(out[0], {first[0], second[0]}, 1e-14);
  expect_near(out[1], {first[1], second[1]}, 1e-14);
}

TEST(Updates_Torch, AdamAndAdamW) {
  for (int64_t decoupled : {0, 1}) {
    Attrs attrs{{"beta1", 0.8}, {"beta2", 0.95}, {"eps", 1e-3}, {"weight_decay", 0.2}, {"decoupled", decoupled}};
    check(
        "opt_adam", attrs, 2, [](const Point& x) { return with_corrections({number(x.lr)}, x, 0.8, 0.95); },
        [&](const Point& x) {
          double p = x.p, g = x.g;
          if (decoupled) {
            p *= 1 - x.lr * 0.2;
          } else {
            g += 0.2 * p;
          }
          double m = x.a + (g - x.a) * (1 - 0.8), v = x.b * 0.95 + (1 - 0.95) * g * g;
          double c1 = 1 - std::pow(0.8, x.t + 1), c2 = 1 - std::pow(0.95, x.t + 1);
          double denominator = std::sqrt(v) / std::sqrt(c2) + 1e-3;
          return std::vector{p + -(x.lr / c1) * m / denominator, m, v};
        });
  }
}

// lion-pytorch's update_fn.
TEST(Updates_Lion, IsItsPapers) {
  Attrs attrs{{"beta1", 0.8}, {"beta2", 0.95}, {"weight_decay", 0.2}};
  check("opt_lion", attrs, 1, rate, [](const Point& x) {
    double direction = x.a * 0.8 + x.g * (1 - 0.8), sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
    return std::vector{x.p * (1 - x.lr * 0.2) - x.lr * sign, x.a * 0.95 + x.g * (1 - 0.95)};
  });
  // Nothing moves where there is no direction.
  EXPECT_EQ(run("opt_lion", {{"beta1", 0.9}, {"beta2", 0.99}}, {vec({2}), vec({0}), vec({0}), number(0.1)})[0][0], 2);
}

TEST(Updates_Torch, RmsProp) {
  Attrs attrs{{"alpha", 0.9}, {"eps", 0.01}, {"weight_decay", 0.2}};
  std::vector<Tensor> in{vec({1, -2}), vec({0.5, 0.25}), vec({0.75, 0.5}), number(0.1)};
  auto out = run("opt_rmsprop", attrs, in);
  attrs.set("momentum", 0.7);
  attrs.set("centered", int64_t{1});
  auto both = run("opt_rmsprop", attrs, {in[0], in[1], in[2], vec({0.1, -0.2}), vec({3, 4}), in[3]});
  for (size_t k = 0; k < 2; ++k) {
    const double p = in[0].f[k], g = in[1].f[k] + 0.2 * p, square = in[2].f[k] * 0.9 + 0.1 * g * g;
    expect_near({out[0][k], out[1][k]}, {p - 0.1 * g / (std::sqrt(square) + 0.01), square}, 1e-14);
    const double before = k == 0 ? 0.1 : -0.2, mean = before + (1 - 0.9) * (g - before);
    const double buffer = 0.7 * (k == 0 ? 3 : 4) + g / (std::sqrt(square - mean * mean) + 0.01);
    expect_near({both[0][k], both[1][k], both[2][k], both[3][k]}, {p - 0.1 * buffer, square, mean, buffer}, 1e-14);
  }
  EXPECT_FALSE(
      infer("opt_rmsprop", attrs, {{DType::kF32, {2}}, {DType::kF32, {2}}, {DType::kF32, {2}}, {DType::kF32, {}}})
          .ok());
}

TEST(Updates_Torch, LambDirection) {
  Attrs attrs{{"beta1", 0.8}, {"beta2", 0.95}, {"eps", 1e-3}, {"weight_decay", 0.2}};
  check(
      "opt_lamb_direction", attrs, 2, [](const Point& x) { return with_corrections({}, x, 0.8, 0.95); },
      [](const Point& x) {
        double m = 0.8 * x.a + 0.2 * x.g, v = 0.95 * x.b + 0.05 * x.g * x.g;
        double corrected_m = m / (1 - std::pow(0.8, x.t + 1)), corrected_v = v / (1 - std::pow(0.95, x.t + 1));
        return std::vector{corrected_m / (std::sqrt(corrected_v) + 1e-3) + 0.2 * x.p, m, v};
      });
}

TEST(Updates_OnnxPreview, Adam) {
  Attrs attrs{
      {"alpha", 0.8}, {"beta", 0.999}, {"epsilon", 1e-3}, {"norm_coefficient", 0.2}, {"norm_coefficient_post", 0.05}};
  check("opt_onnx_adam", attrs, 2, rate_and_step, [](const Point& x) {
    double g = 0.2 * x.p + x.g, v = 0.8 * x.a + (1 - 0.8) * g, h = 0.999 * x.b + (1 - 0.999) * (g * g);
    double r = x.t > 0 ? x.lr * std::sqrt(1 - std::pow(0.999, x.t)) / (1 - std::pow(0.8, x.t)) : x.lr;
    return std::vector{(1 - 0.05) * (x.p - r * (v / (std::sqrt(h) + 1e-3))), v, h};
  });
}

TEST(Updates_OnnxPreview, Adagrad) {
  Attrs attrs{{"decay_factor", 0.01}, {"epsilon", 1e-3}, {"norm_coefficient", 0.2}};
  for (int64_t t : {0, 7}) {
    auto out = run("opt_onnx_adagrad", attrs, {vec({1.5}), vec({-0.5}), vec({0.25}), number(0.1), count(t)});
    double g = 0.2 * 1.5 - 0.5, h = 0.25 + g * g, r = 0.1 / (1 + static_cast<double>(t) * 0.01);
    expect_near(out[0], {1.5 - r * g / (std::sqrt(h) + 1e-3)}, 1e-14);
    expect_near(out[1], {h}, 1e-14);
  }
}

TEST(Updates_OnnxPreview, Momentum) {
  for (int64_t mode : {0, 1}) {
    Attrs attrs{{"alpha", 0.9}, {"beta", 0.4}, {"mode", mode}, {"norm_coefficient", 0.2}};
    check("opt_onnx_momentum", attrs, 1, rate_and_step, [&](const Point& x) {
      double g = 0.2 * x.p + x.g, v = 0.9 * x.a + (x.t > 0 ? 0.4 : 1) * g;
      return std::vector{x.p - x.lr * (mode == 0 ? v : g + 0.9 * v), v};
    });
  }
}

TEST(Updates_OnnxRuntime, AdamW) {
  for (int64_t mode : {0, 1}) {
    for (int64_t correct : {0, 1}) {
      Attrs attrs{{"alpha", 0.8},        {"beta", 0.999},     {"epsilon", 1e-3},
                  {"weight_decay", 0.2}, {"adam_mode", mode}, {"correct_bias", correct}};
      check(
          "opt_ort_adamw", attrs, 2,
          [](const Point& x) {
            return std::vector{number(x.lr), count(x.t + 1)};
          },
          [&](const Point& x) {
            double m = 0.8 * x.a + (1 - 0.8) * x.g, v = 0.999 * x.b + (1 - 0.999) * x.g * x.g;
            double c1 = correct ? 1 - std::pow(0.8, x.t + 1) : 1, c2 = correct ? 1 - std::pow(0.999, x.t + 1) : 1;
            if (mode == 0) {
              double p = x.p - x.p * x.lr * 0.2;
              return std::vector{p - x.lr * m / (c1 * (std::sqrt(v / c2) + 1e-3)), m, v};
            }
            double p = x.p - x.lr * std::sqrt(c2) / c1 * m / (std::sqrt(v) + 1e-3);
            return std::vector{p - x.lr * 0.2 * p, m, v};
          });
    }
  }
}

// The first step of models in shared/models: initial values, gradients and values after the step as PyTorch has them,
// rounded to f32.
TEST(Updates_Published, FirstSteps) {
  auto zeros = vec({0, 0, 0});
  auto clipped = [](std::vector<double> g, double limit, double norm) {
    for (double& x : g) x *= limit / (norm + 1e-6);
    return vec(std::move(g));
  };
  // gpt2_legacy: adam, lr 0.0005, decay 0.01, clip 0.5.
  auto adam = run("opt_adam", {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.01}},
                  {vec({0.025792473927140236, -0.008282138966023922, -0.023517297580838203}),
                   clipped({1.6291978681692854e-05, 5.596166374743916e-05, -2.224906893388834e-05}, 0.5, 3.11635909),
                   zeros, zeros, number(0.0005), number(1 - 0.9), number(1 - 0.999)});
  expect_near(adam[0], {0.025292493402957916, -0.007782206870615482, -0.023017318919301033}, 1e-8);
  // gpt2: adamw, lr 0.0005, decay 0.1, clip 1.
  auto adamw = run("opt_adam",
                   {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"decoupled", int64_t{1}}},
                   {vec({-0.0202004574239254, -0.0019696992821991444, 0.01564466394484043}),
                    clipped({0.00016013439744710922, -0.00227982341311872, -0.001190346316434443}, 1, 3.39074624),
                    zeros, zeros, number(0.0005), number(1 - 0.9), number(1 - 0.95)});
  expect_near(adamw[0], {-0.020699340850114822, -0.001469608279876411, 0.01614386774599552}, 1e-8);
  // mlp: Nesterov momentum, lr 0.05, decay 0.0001.
  auto momentum =
      run("opt_momentum", {{"momentum", 0.9}, {"nesterov", int64_t{1}}, {"weight_decay", 0.0001}},
          {vec({0.019158700481057167, 0.028317483142018318, -0.023652933537960052}),
           vec({-0.003774544456973672, 0.004258336499333382, -0.004938253201544285}), zeros, number(0.05), flag(true)});
  expect_near(momentum[0], {0.019517099484801292, 0.027912672609090805, -0.02318357490003109}, 1e-8);
  // ort_transformer: AdamWOptimizer, adam_mode 1, lr 0.001, decay 0.01; its embedding's gradient is zero.
  Attrs ort{{"alpha", double{0.9f}},
            {"beta", double{0.999f}},
            {"epsilon", double{1e-6f}},
            {"weight_decay", double{0.01f}},
            {"adam_mode", int64_t{1}}};
  auto pos = run("opt_ort_adamw", ort,
                 {vec({0.005771476309746504, 0.06701724976301193, 0.0018675640458241105}),
                  vec({-0.001334628090262413, -0.00012417910329531878, 0.0010869966354221106}), zeros, zeros,
                  number(0.001), count(1)});
  expect_near(pos[0], {0.006748262792825699, 0.06781360507011414, 0.0008958247490227222}, 1e-7);
  auto embed = run("opt_ort_adamw", ort,
                   {vec({0.08056550472974777, 1.0973414182662964, -0.28684544563293457}), zeros, zeros, zeros,
                    number(0.001), count(1)});
  expect_near(embed[0], {0.0805647000670433, 1.0973304510116577, -0.28684258460998535}, 1e-7);
}

TEST(Updates_Published, OnnxRuntimeNeedsAccurateCorrections) {
  // 1 - beta^t must not be the difference of two f32 numbers near 1: the first step is exactly lr where epsilon and
  // decay are zero.
  Attrs attrs{{"alpha", 0.9}, {"beta", 0.999}, {"epsilon", 0.0}};
  std::vector<TensorType> types(4, {DType::kF32, {1}});
  types.push_back({DType::kF32, {}});
  types.push_back({DType::kI64, {}});
  for (const ScalarNode& n : scalar_function(*find_op("opt_ort_adamw"), {attrs, types}).nodes)
    EXPECT_NE(n.op, ScalarOp::kPow);
  auto out = run("opt_ort_adamw", attrs, {vec({1}), vec({-3}), vec({0}), vec({0}), number(0.125), count(1)});
  expect_near(out[0], {1.125}, 1e-15);
}

TEST(Updates_HalfPrecision, ComputesInF32) {
  std::vector<TensorType> types(2, {DType::kBF16, {4}});
  types.push_back({DType::kBF16, {}});
  Attrs attrs;
  ScalarFunction body = scalar_function(*find_op("opt_sgd"), {attrs, types});
  EXPECT_EQ(body.nodes[body.outputs[0]].type, DType::kBF16);
  for (const ScalarNode& n : body.nodes) {
    if (n.op == ScalarOp::kMul || n.op == ScalarOp::kSub) {
      EXPECT_EQ(n.type, DType::kF32);
    }
  }
}

TEST(Updates_Formula, IsParallelInEveryDimension) {
  std::vector<TensorType> types(4, {DType::kF32, {3, 1}});
  for (int k = 0; k < 3; ++k) types.push_back({DType::kF32, {}});
  Attrs attrs{{"beta1", 0.9}, {"beta2", 0.9}, {"eps", 0.0}};
  EXPECT_EQ(to_string(bound_formula(*find_op("opt_adam"), {attrs, types})),
            "a b, a b, a b, a b, ., ., . -> a b, a b, a b");
}

TEST(Updates_Errors, NameTheInput) {
  TensorType p{DType::kF32, {4}}, scalar{DType::kF32, {}}, step{DType::kI64, {}};
  EXPECT_EQ(infer("opt_sgd", {}, {p, {DType::kF32, {5}}, scalar}).message(),
            "input 1 of the update of f32[4]: expected f32[4], found f32[5]");
  EXPECT_EQ(infer("opt_sgd", {}, {p, p, {DType::kF64, {}}}).message(),
            "input 2 of the update of f32[4]: expected f32[], found f64[]");
  EXPECT_EQ(infer("opt_onnx_momentum", {{"alpha", 0.9}, {"beta", 0.4}, {"mode", int64_t{2}}}, {p, p, p, scalar, step})
                .message(),
            "expected mode 0 (standard) or 1 (nesterov), found 2");
  EXPECT_EQ(
      infer("opt_onnx_adam", {{"alpha", 0.9}, {"beta", 1.5}, {"epsilon", 0.1}}, {p, p, p, p, scalar, step}).message(),
      "expected beta from 0 to 1, found 1.5");
  EXPECT_FALSE(
      infer("opt_onnx_adam", {{"alpha", std::nan("")}, {"beta", 0.5}, {"epsilon", 0.1}}, {p, p, p, p, scalar, step})
          .ok());
  EXPECT_FALSE(infer("opt_sgd", {}, {step, step, step}).ok());
}

}  // namespace
}  // namespace partita
