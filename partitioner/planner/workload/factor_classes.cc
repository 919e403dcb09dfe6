#include "partitioner/planner/workload/factor_classes.h"

#include <algorithm>
#include <numeric>

namespace partita {

int FactorClasses::make(int64_t size) {
  parent_.push_back(static_cast<int>(parent_.size()));
  size_.push_back(size);
  children_.emplace_back();
  return parent_.back();
}

int FactorClasses::root(int c) const {
  while (parent_[c] != c) c = parent_[c] = parent_[parent_[c]];
  return c;
}

std::vector<std::vector<int>> FactorClasses::fresh(const Shape& shape) {
  std::vector<std::vector<int>> dims;
  for (int64_t n : shape) dims.push_back(n > 1 ? std::vector<int>{make(n)} : std::vector<int>{});
  return dims;
}

std::vector<int> FactorClasses::leaves(const std::vector<int>& pieces) const {
  std::vector<int> out, open(pieces.rbegin(), pieces.rend());
  while (!open.empty()) {
    int c = root(open.back());
    open.pop_back();
    if (children_[c].empty()) {
      out.push_back(c);
    } else {
      open.insert(open.end(), children_[c].rbegin(), children_[c].rend());
    }
  }
  return out;
}

bool FactorClasses::cut(int c, int64_t outer) {
  c = root(c);
  if (outer <= 1 || size_[c] <= outer || size_[c] % outer != 0) return false;
  int64_t inner = size_[c] / outer;
  int a = make(outer), b = make(inner);
  children_[c] = {a, b};
  return true;
}

void FactorClasses::unify(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> x = leaves(a), y = leaves(b);
  size_t i = 0, j = 0;
  while (i < x.size() && j < y.size()) {
    int c = root(x[i]), d = root(y[j]);
    if (size_[c] == size_[d]) {
      parent_[std::max(c, d)] = std::min(c, d);
      ++i, ++j;
    } else if (size_[c] < size_[d] ? cut(d, size_[c]) : cut(c, size_[d])) {
      std::vector<int> rest_x(x.begin() + static_cast<int64_t>(i), x.end()),
          rest_y(y.begin() + static_cast<int64_t>(j), y.end());
      x = leaves(rest_x), y = leaves(rest_y);
      i = j = 0;
    } else {
      return;
    }
  }
}

std::vector<int> FactorClasses::take(std::vector<int>& list, int64_t size) {
  std::vector<int> taken;
  int64_t have = 1;
  while (have < size) {
    list = leaves(list);
    if (list.empty()) return {};
    int64_t next = size_[root(list.front())], need = size / have;
    if (next > need && !cut(list.front(), need)) return {};
    if (next > need) continue;
    if (size % (have * next) != 0) return {};
    taken.push_back(list.front());
    list.erase(list.begin());
    have *= next;
  }
  return taken;
}

void FactorClasses::apply(const Graph& graph, const Node& node, const Formula& formula,
                          std::vector<std::vector<std::vector<int>>>& dims, std::vector<std::vector<int>>& factors) {
  factors.assign(formula.factors.size(), {});
  for (size_t k = 0; k < node.inputs.size() && k < formula.inputs.size(); ++k) {
    ValueId v = node.inputs[k];
    if (v == kNoValue) continue;
    if (dims[v].empty()) dims[v] = fresh(graph.type(v).shape);
    const auto& operand = formula.inputs[k].dims;
    for (size_t d = 0; d < operand.size() && d < dims[v].size(); ++d) {
      std::vector<int> list = leaves(dims[v][d]);
      for (int f : operand[d]) {
        int64_t size = formula.factors[f].size;
        if (size <= 1) continue;
        std::vector<int> pieces = take(list, size);
        if (pieces.empty()) break;
        if (factors[f].empty()) {
          factors[f] = pieces;
        } else {
          unify(factors[f], pieces);
        }
      }
    }
  }
  // A slice that takes one of several equal parts: what it gives is the inner factor of what it reads.
  if (node.inputs.size() == 1 && formula.outputs.size() == 1 && formula.inputs[0].linear >= 0) {
    const auto &in = formula.inputs[0].dims, &out = formula.outputs[0].dims;
    for (size_t d = 0; d < in.size() && in.size() == out.size(); ++d) {
      if (in[d].size() != 1 || out[d].size() != 1 || in[d] == out[d]) continue;
      int64_t whole = formula.factors[in[d][0]].size, part = formula.factors[out[d][0]].size;
      bool moved = !factors[out[d][0]].empty();  // by a transposition
      if (moved || part <= 1 || whole <= part || whole % part != 0 || factors[in[d][0]].empty()) continue;
      std::vector<int> list = leaves(factors[in[d][0]]);
      if (!take(list, whole / part).empty()) factors[out[d][0]] = take(list, part);
    }
  }
  for (size_t k = 0; k < node.outputs.size() && k < formula.outputs.size(); ++k) {
    std::vector<std::vector<int>> made;
    for (const auto& dim : formula.outputs[k].dims) {
      std::vector<int> pieces;
      for (int f : dim) {
        if (formula.factors[f].size <= 1) continue;
        if (factors[f].empty()) factors[f] = {make(formula.factors[f].size)};
        pieces.insert(pieces.end(), factors[f].begin(), factors[f].end());
      }
      made.push_back(std::move(pieces));
    }
    dims[node.outputs[k]] = std::move(made);
  }
}

}  // namespace partita
