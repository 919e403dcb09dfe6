// Follows factors through a graph: pieces of dimensions that formulas say are the same get one class.
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "ir/op/formula.h"

namespace partita {

class FactorClasses {
 public:
  // Dimensions of fresh pieces, one a dimension of size > 1.
  std::vector<std::vector<int>> fresh(const Shape& shape);
  // Unifies the operands of a use and gives the outputs' dimensions. `dims[v]` of an input that is empty is filled with
  // fresh ones. factors[f]: the pieces of factor f of `formula`.
  void apply(const Graph& graph, const Node& node, const Formula& formula,
             std::vector<std::vector<std::vector<int>>>& dims, std::vector<std::vector<int>>& factors);
  // The undivided classes that a list now stands for.
  std::vector<int> leaves(const std::vector<int>& pieces) const;
  int root(int c) const;
  int64_t size(int c) const { return size_[root(c)]; }
  size_t count() const { return parent_.size(); }

 private:
  int make(int64_t size);
  void unify(const std::vector<int>& a, const std::vector<int>& b);
  // Cuts class c into an outer part of `outer` and the rest; false where it does not divide.
  bool cut(int c, int64_t outer);
  // The first pieces of `list` (from `at`, advanced) that make up `size`; empty where they do not.
  std::vector<int> take(std::vector<int>& list, int64_t size);

  mutable std::vector<int> parent_;  // root() shortens paths
  std::vector<int64_t> size_;
  std::vector<std::vector<int>> children_;
};

}  // namespace partita
