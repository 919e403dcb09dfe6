// Small models trained for one step: forward, backward and update against the reference in double.
#include <gtest/gtest.h>

#include "base/cat.h"
#include "base/status.h"
#include "passes/rewrite/clean_up.h"
#include "passes/training/build_backward.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

struct Model {
  Builder b;
  int count = 0;

  ValueId parameter(Shape s) { return b.state({.name = cat("p", count++)}, {DType::kF32, std::move(s)}); }
  ValueId input(Shape s, DType t = DType::kF32) { return b.input(cat("x", count++), {t, std::move(s)}); }
  // Mean of the squares, as the loss; then backward and a plain update.
  Graph trained(ValueId y) {
    std::vector<int64_t> dims;
    for (int d = 0; d < b.rank(y); ++d) dims.push_back(d);
    return finished(b.mean(b.mul(y, y), dims, false));
  }
  Graph finished(ValueId loss) {
    b.output("loss", loss);
    PassContext context;
    auto g = build_backward(std::move(b).finish(), context);
    PARTITA_CHECK(g.ok(), std::string(g.status().message()));
    Builder u(*g);
    std::vector<GraphOutput> gradients = u.graph().outputs;
    u.set_outputs({gradients[0]});
    u.context().segment = Segment::kUpdate;
    for (const GraphOutput& o : gradients) {
      if (o.name.rfind("grad/", 0) != 0) continue;
      for (const State& s : u.graph().states) {
        if ("grad/" + s.name == o.name) u.set_next(s.name, u.sub(s.value, u.scale(o.value, 0.5)));
      }
    }
    Graph made = std::move(u).finish();
    for (auto pass : {simplify, merge_duplicates, remove_dead_nodes}) {
      auto now = pass(made, context);
      PARTITA_CHECK(now.ok(), std::string(now.status().message()));
      made = *std::move(now);
    }
    return made;
  }
};

int check(const Graph& g, double tolerance = 3e-5) {
  return compare_with_reference(g, {.tolerance = tolerance, .slack = 1, .scale = 0.5, .below = 10});
}

TEST(Model_Perceptron, TrainsAsTheReference) {
  Model m;
  ValueId h = m.input({9, 17});
  for (int64_t out : {33, 21, 5}) {
    int64_t in = m.b.shape(h)[1];
    ValueId w = m.parameter({in, out}), bias = m.parameter({out});
    h = m.b.emit("relu", {m.b.add(m.b.matmul(h, w), bias)});
  }
  check(m.trained(h));
}

TEST(Model_ConvolutionBatchNorm, TrainsAsTheReference) {
  Model m;
  ValueId x = m.input({4, 3, 8, 9});
  auto ints = [](std::vector<int64_t> v) { return v; };
  Attrs attrs{{"strides", ints({1, 1})},
              {"pads_low", ints({1, 1})},
              {"pads_high", ints({1, 1})},
              {"dilations", ints({1, 1})},
              {"groups", int64_t{1}}};
  ValueId y = m.b.emit("conv", {x, m.parameter({6, 3, 3, 3})}, attrs);
  ValueId scale = m.parameter({6}), bias = m.parameter({6});
  y = m.b.emit("relu", {m.b.emit_all("batch_norm", {y, scale, bias}, {{"epsilon", 1e-2}})[0]});
  ValueId z = m.b.emit("conv", {y, m.parameter({6, 6, 3, 3})}, attrs);
  z = m.b.emit("relu", {m.b.add(m.b.add(z, m.b.reshape(m.parameter({6}), {6, 1, 1})), y)});
  ValueId pooled = m.b.emit("avg_pool", {z},
                            {{"kernel", ints({2, 2})},
                             {"strides", ints({2, 2})},
                             {"pads_low", ints({0, 0})},
                             {"pads_high", ints({0, 0})},
                             {"count_include_pad", int64_t{0}}});
  check(m.trained(m.b.mean(pooled, {2, 3}, false)), 1e-4);
}

TEST(Model_AttentionInPrimitives, TrainsAsTheReference) {
  Model m;
  const int64_t n = 2, s = 12, d = 32, h = 4;
  ValueId x = m.input({n, s, d});
  ValueId scale = m.parameter({d});
  ValueId y = m.b.emit_all("rms_norm", {x, scale}, {{"axis", int64_t{2}}, {"epsilon", 1e-3}})[0];
  ValueId qkv = m.b.add(m.b.reshape(m.b.matmul(m.b.reshape(y, {n * s, d}), m.parameter({d, 3 * d})), {n, s, 3 * d}),
                        m.parameter({3 * d}));
  std::vector<ValueId> p;
  for (int64_t k = 0; k < 3; ++k) {
    ValueId part = m.b.emit("slice", {qkv},
                            {{"starts", std::vector<int64_t>{0, 0, k * d}},
                             {"limits", std::vector<int64_t>{n, s, (k + 1) * d}},
                             {"strides", std::vector<int64_t>{1, 1, 1}}});
    p.push_back(m.b.transpose(m.b.reshape(part, {n, s, h, d / h}), {0, 2, 1, 3}));
  }
  ValueId scores = m.b.scale(m.b.matmul(p[0], m.b.transpose(p[1], {0, 1, 3, 2})), 0.35);
  ValueId i = m.b.emit("iota", {}, {{"size", s}, {"to", DType::kI64}});
  ValueId causal = m.b.emit("le", {i, m.b.reshape(i, {s, 1})});
  scores = m.b.select(causal, scores, m.b.scalar(DType::kF32, -1e9));
  ValueId mixed = m.b.matmul(m.b.emit("softmax", {scores}, {{"dim", int64_t{3}}}), p[2]);
  ValueId out = m.b.reshape(m.b.transpose(mixed, {0, 2, 1, 3}), {n * s, d});
  ValueId gate = m.b.emit("silu", {m.b.matmul(out, m.parameter({d, 2 * d}))});
  ValueId z = m.b.matmul(m.b.mul(gate, m.b.matmul(out, m.parameter({d, 2 * d}))), m.parameter({2 * d, d}));
  check(m.trained(m.b.add(x, m.b.reshape(z, {n, s, d}))));
}

TEST(Model_Classifier, TrainsAsTheReference) {
  Model m;
  ValueId ids = m.input({3, 7}, DType::kI64), labels = m.input({21}, DType::kI64);
  ValueId table = m.parameter({10, 16}), scale = m.parameter({16}), bias = m.parameter({16});
  ValueId h = m.b.emit("gather", {table, ids}, {{"dim", int64_t{0}}});
  h = m.b.emit_all("layer_norm", {h, scale, bias}, {{"axis", int64_t{2}}, {"epsilon", 1e-2}})[0];
  ValueId logits =
      m.b.matmul(m.b.reshape(m.b.emit("gelu", {h}, {{"approximate", int64_t{0}}}), {21, 16}), table, false, true);
  ValueId loss = m.b.emit_all("cross_entropy", {logits, labels})[0];
  ValueId counts = m.b.cast(m.b.emit("ne", {labels, m.b.scalar(DType::kI64, 3)}), DType::kF32);
  check(m.finished(m.b.div(m.b.reduce_sum(m.b.mul(loss, counts), {0}, false), m.b.reduce_sum(counts, {0}, false))));
}

}  // namespace
}  // namespace partita
