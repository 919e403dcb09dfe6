// Tests of recognisers: a graph spelled out by hand, a pass, the same values before and after.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>

#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "passes/rewrite/clean_up.h"
#include "passes/rewrite/pass.h"

namespace partita {

using PassFunction = absl::StatusOr<Graph> (*)(const Graph&, const PassContext&);

inline int64_t count(const Graph& graph, std::string_view op) {
  int64_t n = 0;
  for (const Node& node : graph.nodes) n += node.op->name == op;
  return n;
}

inline const Node& the(const Graph& graph, std::string_view op) {
  for (const Node& node : graph.nodes) {
    if (node.op->name == op) return node;
  }
  ADD_FAILURE() << "no " << op;
  return graph.nodes.front();
}

// Random values for every data input and every state without a literal, from a fixed seed: floats are normal (states of
// large models smaller), integers 0 to 4, bools mixed.
inline std::map<ValueId, Tensor> random_feeds(const Graph& graph) {
  std::mt19937 random(7);
  std::map<ValueId, Tensor> feeds;
  auto feed = [&](ValueId v) {
    Tensor t = Tensor::zeros(graph.type(v));
    std::normal_distribution<double> normal(0, t.f.size() > 1000 ? 0.1 : 1);
    for (double& x : t.f) x = normal(random);
    for (int64_t& x : t.i) x = t.type.dtype == DType::kBool ? random() % 3 != 0 : static_cast<int64_t>(random() % 5);
    feeds.emplace(v, std::move(t));
  };
  for (const GraphInput& in : graph.inputs) feed(in.value);
  for (const State& s : graph.states) {
    if (!std::holds_alternative<Literal>(s.initial)) feed(s.value);
  }
  return feeds;
}

inline void expect_same_values(const Graph& before, const Graph& after, double tolerance = 1e-12) {
  std::map<ValueId, Tensor> feeds = random_feeds(before), again;
  for (size_t k = 0; k < before.inputs.size(); ++k)
    again.emplace(after.inputs[k].value, feeds.at(before.inputs[k].value));
  for (size_t k = 0; k < before.states.size(); ++k) {
    if (auto at = feeds.find(before.states[k].value); at != feeds.end())
      again.emplace(after.states[k].value, at->second);
  }
  std::vector<Tensor> a = evaluate_graph(before, feeds), b = evaluate_graph(after, again);
  ASSERT_EQ(a.size(), b.size());
  for (size_t k = 0; k < a.size(); ++k) {
    ASSERT_EQ(a[k].type, b[k].type);
    for (size_t i = 0; i < a[k].f.size(); ++i)
      ASSERT_NEAR(a[k].f[i], b[k].f[i], tolerance * (1 + std::abs(a[k].f[i]))) << "output " << k << ", element " << i;
    ASSERT_EQ(a[k].i, b[k].i);
  }
}

// The clean-up that the pipeline runs first, then the pass; checks that the values stay.
inline Graph recognised(PassFunction pass, Builder b, double tolerance = 1e-12) {
  Graph graph = std::move(b).finish();
  PassContext context;
  Graph now = *remove_dead_nodes(*simplify(*merge_duplicates(graph, context), context), context);
  auto after = pass(now, context);
  EXPECT_TRUE(after.ok()) << after.status();
  expect_same_values(graph, *after, tolerance);
  return *std::move(after);
}

inline ValueId f64_input(Builder& b, std::string name, Shape shape) {
  return b.input(std::move(name), {DType::kF64, std::move(shape)});
}

inline ValueId constant(Builder& b, DType dtype, Shape shape, const std::function<double(int64_t)>& value) {
  Tensor t = Tensor::zeros({dtype, std::move(shape)});
  for (size_t k = 0; k < t.f.size(); ++k) t.f[k] = value(static_cast<int64_t>(k));
  for (size_t k = 0; k < t.i.size(); ++k) t.i[k] = static_cast<int64_t>(value(static_cast<int64_t>(k)));
  return b.constant(to_literal(t));
}

// Features [start, limit) of the last dimension.
inline ValueId last_slice(Builder& b, ValueId v, int64_t start, int64_t limit) {
  Shape starts(b.shape(v).size(), 0), limits = b.shape(v), strides(b.shape(v).size(), 1);
  starts.back() = start, limits.back() = limit;
  return b.emit("slice", {v}, {{"starts", starts}, {"limits", limits}, {"strides", strides}});
}

}  // namespace partita
