// Updates that are made of several operations, against the loops of the libraries that they come from.
#include "passes/training/build_optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "base/cat.h"
#include "gtest/gtest.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

using Values = std::vector<double>;

double root_mean_square(const Values& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

// _single_tensor_adafactor of torch.optim (2.15), line by line, for a matrix or, with no rows, a vector.
struct TorchAdafactor {
  size_t rows, columns;
  double lr, beta2_decay, weight_decay, eps1, eps2, d;
  Values row_var = Values(rows), col_var = Values(columns), variance = Values(columns);
  double step = 0;

  void update(Values& param, const Values& grad) {
    step += 1;
    const double one_minus_beta2 = std::pow(step, beta2_decay), rho = std::min(lr, 1 / std::sqrt(step));
    const double alpha = std::max(eps2, root_mean_square(param)) * rho;
    for (double& p : param) p *= 1 - lr * weight_decay;
    Values estimate(grad.size());
    if (rows > 0) {
      factored(grad, one_minus_beta2, estimate);
    } else {
      for (size_t k = 0; k < grad.size(); ++k)
        estimate[k] = variance[k] += one_minus_beta2 * (grad[k] * grad[k] - variance[k]);
    }
    Values update(grad.size());
    for (size_t k = 0; k < grad.size(); ++k) update[k] = grad[k] / std::sqrt(std::max(estimate[k], eps1 * eps1));
    const double denominator = std::max(1.0, root_mean_square(update) / d);
    for (size_t k = 0; k < grad.size(); ++k) param[k] -= alpha / denominator * update[k];
  }

  void factored(const Values& grad, double weight, Values& estimate) {
    double mean_of_rows = 0;
    for (size_t r = 0; r < rows; ++r) {
      double mean = 0;
      for (size_t c = 0; c < columns; ++c) mean += grad[r * columns + c] * grad[r * columns + c];
      row_var[r] += weight * (mean / static_cast<double>(columns) - row_var[r]);
      mean_of_rows += row_var[r] / static_cast<double>(rows);
    }
    for (size_t c = 0; c < columns; ++c) {
      double mean = 0;
      for (size_t r = 0; r < rows; ++r) mean += grad[r * columns + c] * grad[r * columns + c];
      col_var[c] += weight * (mean / static_cast<double>(rows) - col_var[c]);
    }
    for (size_t k = 0; k < grad.size(); ++k)
      estimate[k] = row_var[k / columns] * col_var[k % columns] / std::max(mean_of_rows, eps1);
  }
};

// A parameter whose gradient is an input.
struct Trained {
  Graph graph;
  std::map<std::string, Tensor> now;

  Trained(const Shape& shape, const OptimizerRecipe& optimizer, const Values& first) {
    Builder b;
    ValueId g = b.input("g", {DType::kF64, shape});
    ValueId w =
        b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}}, {DType::kF64, shape});
    std::vector<int64_t> dims;
    for (int d = 0; d < b.rank(w); ++d) dims.push_back(d);
    b.output("loss", b.reduce_sum(b.mul(w, g), dims, false));
    b.output("grad/w", g);
    PassContext context;
    context.recipe.optimizer = optimizer;
    Graph built = *build_optimizer(std::move(b).finish(), context);
    for (const State& s : built.states) {
      built.outputs.push_back({s.name, s.next});
      now[s.name] = Tensor::zeros(built.type(s.value));
    }
    now["w"].f = first;
    graph = std::move(built);
  }

  void step(const Values& gradient) {
    std::map<ValueId, Tensor> feeds = {{graph.inputs[0].value, {graph.type(graph.inputs[0].value), gradient, {}}}};
    for (const State& s : graph.states) feeds[s.value] = now.at(s.name);
    std::vector<Tensor> next = evaluate_graph(graph, feeds);
    for (size_t k = 0; k < graph.outputs.size(); ++k) {
      if (now.contains(graph.outputs[k].name)) now[graph.outputs[k].name] = next[k];
    }
  }
};

void expect_near(const Values& found, const Values& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t k = 0; k < found.size(); ++k)
    EXPECT_NEAR(found[k], expected[k], 1e-13 * (1 + std::fabs(expected[k]))) << what << " " << k;
}

TEST(BuildOptimizer_Adafactor, IsTorchs) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  auto draw = [&](size_t n) {
    Values v(n);
    for (double& x : v) x = normal(random);
    return v;
  };
  for (double decay : {0.0, 0.1}) {
    OptimizerRecipe o = default_optimizer(OptimizerKind::kAdafactor);
    o.lr = 0.6, o.weight_decay = decay, o.clip_threshold = decay > 0 ? 1.2 : 1;
    TorchAdafactor matrix{4, 6, o.lr, o.beta2_decay, decay, o.eps, o.eps2, o.clip_threshold};
    TorchAdafactor vector{0, 6, o.lr, o.beta2_decay, decay, o.eps, o.eps2, o.clip_threshold};
    Values m = draw(24), v(6);  // the vector starts at zero: eps2 is its size
    Trained of_matrix({4, 6}, o, m), of_vector({6}, o, v);
    for (int step = 0; step < 5; ++step) {
      Values g = draw(24), h = draw(6);
      if (step == 2) std::fill(g.begin(), g.end(), 0.0);
      matrix.update(m, g), of_matrix.step(g);
      vector.update(v, h), of_vector.step(h);
    }
    expect_near(of_matrix.now.at("w").f, m, "matrix");
    expect_near(of_matrix.now.at("optimizer/w/row_var").f, matrix.row_var, "rows");
    expect_near(of_matrix.now.at("optimizer/w/col_var").f, matrix.col_var, "columns");
    EXPECT_EQ(of_matrix.now.at("optimizer/w/col_var").type.shape, (Shape{1, 6}));
    expect_near(of_vector.now.at("w").f, v, "vector");
    expect_near(of_vector.now.at("optimizer/w/variance").f, vector.variance, "variance");
  }
}

// torch.optim.Muon (2.15), line by line, without its rounding to bfloat16; `m` rows of `n` columns.
struct TorchMuon {
  size_t m, n;
  OptimizerRule o;
  Values buffer = Values(m * n);

  // x y, of matrices [p, q] and [q, r]; y's transpose where `turned`.
  static Values product(const Values& x, const Values& y, size_t p, size_t q, size_t r, bool turned = false) {
    Values out(p * r);
    for (size_t i = 0; i < p; ++i) {
      for (size_t j = 0; j < r; ++j) {
        for (size_t k = 0; k < q; ++k) out[i * r + j] += x[i * q + k] * (turned ? y[j * q + k] : y[k * r + j]);
      }
    }
    return out;
  }
  static Values transposed(const Values& x, size_t p, size_t q) {
    Values out(x.size());
    for (size_t k = 0; k < x.size(); ++k) out[k % q * p + k / q] = x[k];
    return out;
  }

  Values zeropower(Values x) const {
    const auto [a, b, c] = o.ns_coefficients;
    const size_t rows = std::min(m, n), columns = std::max(m, n);
    if (m > n) x = transposed(x, m, n);
    const double norm = root_mean_square(x) * std::sqrt(static_cast<double>(x.size()));
    for (double& v : x) v /= std::max(norm, o.eps);
    for (int64_t step = 0; step < o.ns_steps; ++step) {
      const Values gram = product(x, x, rows, columns, rows, true);
      Values update = product(gram, gram, rows, rows, rows);
      for (size_t k = 0; k < update.size(); ++k) update[k] = b * gram[k] + c * update[k];
      const Values moved = product(update, x, rows, rows, columns);
      for (size_t k = 0; k < x.size(); ++k) x[k] = a * x[k] + moved[k];
    }
    return m > n ? transposed(x, n, m) : x;
  }

  void update(Values& param, const Values& grad) {
    Values u(grad.size());
    for (size_t k = 0; k < grad.size(); ++k) {
      buffer[k] += (1 - o.momentum) * (grad[k] - buffer[k]);
      u[k] = o.nesterov ? grad[k] + o.momentum * (buffer[k] - grad[k]) : buffer[k];
    }
    u = zeropower(std::move(u));
    const double rows = static_cast<double>(m), columns = static_cast<double>(n);
    const double ratio = o.adjust_lr_fn == AdjustLr::kOriginal        ? std::sqrt(std::max(1.0, rows / columns))
                         : o.adjust_lr_fn == AdjustLr::kMatchRmsAdamW ? 0.2 * std::sqrt(std::max(rows, columns))
                                                                      : std::sqrt(rows / columns);
    for (size_t k = 0; k < param.size(); ++k) param[k] = param[k] * (1 - o.lr * o.weight_decay) - o.lr * ratio * u[k];
  }
};

TEST(BuildOptimizer_Muon, IsTorchs) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  auto draw = [&](size_t n) {
    Values v(n);
    for (double& x : v) x = normal(random);
    return v;
  };
  const std::pair<size_t, size_t> kShapes[] = {{4, 4}, {3, 7}, {8, 2}};
  for (size_t k = 0; k < std::size(kShapes); ++k) {
    const auto [m, n] = kShapes[k];
    OptimizerRecipe o = default_optimizer(OptimizerKind::kMuon);
    o.lr = 0.1, o.nesterov = k != 1, o.adjust_lr_fn = static_cast<AdjustLr>(k);
    if (k == 2) o.momentum = 0.5, o.ns_steps = 3, o.ns_coefficients = {3, -3.25, 1.25}, o.weight_decay = 0, o.eps = 0.5;
    TorchMuon torch{m, n, o};
    Values w = draw(m * n);
    Trained trained({static_cast<int64_t>(m), static_cast<int64_t>(n)}, o, w);
    for (int step = 0; step < 3; ++step) {
      Values g = draw(m * n);
      if (k == 2 && step == 0) std::fill(g.begin(), g.end(), 0.0);  // eps stands for the norm
      torch.update(w, g), trained.step(g);
    }
    expect_near(trained.now.at("w").f, w, "matrix");
    expect_near(trained.now.at("optimizer/w/momentum_buffer").f, torch.buffer, "momentum");
  }
}

TEST(BuildOptimizer_Muon, AdamWUpdatesTheRest) {
  OptimizerRecipe o = default_optimizer(OptimizerKind::kMuon);
  o.adamw.match = {"emb*"};
  o.groups = {ParameterGroup{o, {"*.1.*"}}};
  o.groups[0].adamw.lr = 0.5;
  EXPECT_EQ(o.rule_of("layer.0.w", 2).kind, OptimizerKind::kMuon);
  EXPECT_EQ(o.rule_of("layer.0.b", 1).kind, OptimizerKind::kAdamW);
  EXPECT_EQ(o.rule_of("layer.0.experts", 3).kind, OptimizerKind::kAdamW);
  EXPECT_EQ(o.rule_of("emb.0.w", 2).lr, o.adamw.lr);
  EXPECT_EQ(o.rule_of("layer.1.b", 1).lr, 0.5);
  Trained vector({6}, o, Values(6, 1.0));
  EXPECT_TRUE(vector.now.contains("optimizer/w/exp_avg_sq"));
  EXPECT_FALSE(vector.now.contains("optimizer/w/momentum_buffer"));
}

// bitsandbytes' AdamW8bit (kOptimizerStatic8bit2StateBlockwise), loop by loop; codes are searched in the map.
struct Adam8bit {
  static constexpr size_t kBlock = 256;
  OptimizerRule o;
  std::array<Values, 2> maps, absmax;
  std::array<std::vector<int64_t>, 2> codes;
  double step = 0;

  Adam8bit(const OptimizerRule& rule, size_t n) : o(rule) {
    for (size_t k = 0; k < 2; ++k) {
      maps[k] = {0, 1};
      for (int i = 0; i < 7; ++i) {
        const int items = 1 << (k == 0 ? i : i + 1);
        for (int j = 0; j < items; ++j) {
          maps[k].push_back(std::pow(10, i - 6) * (0.1 + 0.9 * (j + 0.5) / items));
          if (k == 0) maps[k].push_back(-maps[k].back());
        }
      }
      std::sort(maps[k].begin(), maps[k].end());
      absmax[k].assign((n + kBlock - 1) / kBlock, 0);
      codes[k].assign(n, 0);
    }
  }

  // The nearest of the map; of the first moment, of x's sign.
  int64_t code(size_t k, double x) const {
    const Values& map = maps[k];
    size_t at = static_cast<size_t>(std::lower_bound(map.begin(), map.end(), x) - map.begin());
    if (at > 0 && (at == map.size() || x - map[at - 1] < map[at] - x)) --at;
    if (k == 0 && std::signbit(map[at]) != std::signbit(x)) at += x > 0 ? 1 : -1;
    return static_cast<int64_t>(at);
  }

  void update(Values& p, const Values& g) {
    step += 1;
    const double c1 = 1 - std::pow(o.betas[0], step), c2 = std::sqrt(1 - std::pow(o.betas[1], step));
    for (size_t block = 0; block < absmax[0].size(); ++block) {
      const size_t begin = block * kBlock, end = std::min(begin + kBlock, p.size());
      std::array<Values, 2> s;
      std::array<double, 2> largest{};
      for (size_t at = begin; at < end; ++at) {
        for (size_t k = 0; k < 2; ++k) {
          const double old = maps[k][static_cast<size_t>(codes[k][at])] * absmax[k][block];
          s[k].push_back(o.betas[k] * old + (1 - o.betas[k]) * (k == 0 ? g[at] : g[at] * g[at]));
          largest[k] = std::max(largest[k], std::fabs(s[k].back()));
        }
        p[at] *= 1 - o.lr * o.weight_decay;
        p[at] += -o.lr * c2 / c1 * (s[0].back() / (std::sqrt(s[1].back()) + c2 * o.eps));
      }
      for (size_t k = 0; k < 2; ++k) {
        absmax[k][block] = largest[k];
        for (size_t at = begin; at < end; ++at)
          codes[k][at] = code(k, largest[k] == 0 ? 0 : s[k][at - begin] / largest[k]);
      }
    }
  }
};

TEST(BuildOptimizer_AdamW8bit, IsBitsandbytess) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  // Blocks of parts of a row, of several rows, of a row and a half; the last one is not full.
  for (const Shape& shape : {Shape{8, 768}, {128, 32}, {4, 3, 384}, {60, 70}, {8192}, {4099}}) {
    SCOPED_TRACE(to_string(shape));
    const auto n = static_cast<size_t>(elements(shape));
    OptimizerRecipe o = default_optimizer(OptimizerKind::kAdamW8bit);
    o.lr = 0.1, o.weight_decay = 0.1;
    Adam8bit bitsandbytes(o, n);
    Values w(n), g(n);
    for (double& x : w) x = normal(random);
    Trained trained(shape, o, w);
    for (int step = 0; step < 3; ++step) {
      for (size_t k = 0; k < n; ++k) g[k] = k < 256 ? 0 : normal(random) * std::pow(10, -static_cast<double>(k % 5));
      bitsandbytes.update(w, g), trained.step(g);
    }
    expect_near(trained.now.at("w").f, w, "weights");
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_EQ(trained.now.at(cat("optimizer/w/state", k + 1)).i, bitsandbytes.codes[k]);
      expect_near(trained.now.at(cat("optimizer/w/absmax", k + 1)).f, bitsandbytes.absmax[k], "scales");
    }
    EXPECT_EQ(trained.now.at("optimizer/w/state1").type.dtype, DType::kU8);
  }
  Trained small({4095}, default_optimizer(OptimizerKind::kAdamW8bit), Values(4095, 1.0));
  EXPECT_EQ(small.now.at("optimizer/w/state1").type, (TensorType{DType::kF64, {4095}}));
  EXPECT_FALSE(small.now.contains("optimizer/w/absmax1"));
}

}  // namespace
}  // namespace partita
