#include "tools/verify/undo/orthonormal.h"

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"

namespace partita::verifier {
namespace {

constexpr double kTolerance = 1e-6;
constexpr double kSmall = 1e-9;  // gradients late in a run

// The nodes between; false where `basis` is made of anything else.
bool find_nodes(const Graph& g, ValueId basis, const std::set<ValueId>& from, std::set<NodeId>& nodes) {
  std::vector<const Literal*> constants = constant_values(g);
  std::vector<ValueId> front = {basis};
  while (!front.empty()) {
    ValueId v = front.back();
    front.pop_back();
    if (v == kNoValue || from.count(v) || constants[v] != nullptr) continue;
    const Node* node = g.producer(v);
    if (node == nullptr || node->op->communicates) return false;
    if (!nodes.insert(g.values[v].producer).second) continue;
    front.insert(front.end(), node->inputs.begin(), node->inputs.end());
  }
  return true;
}

Tensor random_numbers(const TensorType& type, double scale, std::mt19937& rng) {
  Tensor t = Tensor::zeros(type);
  std::normal_distribution<double> normal;
  for (double& x : t.f) x = scale * normal(rng);
  return t;
}

// a^T b of matrices [n, r].
std::vector<double> products(const Tensor& a, const Tensor& b) {
  const size_t r = static_cast<size_t>(a.type.shape[1]), n = static_cast<size_t>(a.type.shape[0]);
  std::vector<double> out(r * r, 0);
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < r; ++i) {
      for (size_t j = 0; j < r; ++j) out[i * r + j] += a.f[k * r + i] * b.f[k * r + j];
    }
  }
  return out;
}

bool is_basis_of(const Tensor& v, const Tensor& x, double scale) {
  const size_t r = static_cast<size_t>(v.type.shape[1]);
  std::vector<double> unit = products(v, v), part = products(v, x);
  for (size_t k = 0; k < r * r; ++k) {
    if (!(std::abs(unit[k] - (k % (r + 1) == 0 ? 1 : 0)) < kTolerance)) return false;
  }
  for (size_t k = 0; k < x.f.size(); ++k) {
    double spanned = 0;
    for (size_t i = 0; i < r; ++i) spanned += v.f[k / r * r + i] * part[i * r + k % r];
    if (!(std::abs(spanned - x.f[k]) < kTolerance * scale)) return false;
  }
  return true;
}

}  // namespace

bool is_basis(const Graph& graph, ValueId basis, ValueId columns, ValueId otherwise) {
  const TensorType& type = graph.type(columns);
  if (type.rank() != 2 || !is_float(type.dtype) || type.shape[0] < type.shape[1] || graph.type(basis) != type ||
      (otherwise != kNoValue && graph.type(otherwise) != type))
    return false;
  std::set<ValueId> from = {columns};
  if (otherwise != kNoValue) from.insert(otherwise);
  std::set<NodeId> nodes;
  if (!find_nodes(graph, basis, from, nodes)) return false;
  Graph part = graph;
  part.nodes.clear();
  for (NodeId n : nodes) part.nodes.push_back(graph.nodes[n]);
  std::mt19937 rng(1);
  for (double scale : {1.0, kSmall}) {
    std::map<ValueId, Tensor> feeds;
    for (ValueId v : from) feeds[v] = random_numbers(graph.type(v), scale, rng);
    if (!is_basis_of(evaluate_graph(part, feeds, {basis})[0], feeds[columns], scale)) return false;
  }
  if (otherwise == kNoValue) return true;
  std::map<ValueId, Tensor> feeds = {{columns, Tensor::zeros(type)}, {otherwise, random_numbers(type, 1, rng)}};
  return evaluate_graph(part, feeds, {basis})[0].f == feeds[otherwise].f;
}

}  // namespace partita::verifier
