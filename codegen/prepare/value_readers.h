// What passes that make others' nodes needless share: how often values are read, and what becomes of them.
#pragma once

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph/builder.h"
#include "ir/graph/graph.h"

namespace partita {

// Counts the readers of a graph's values, and takes some away.
class ValueReaders {
 public:
  explicit ValueReaders(const Graph& graph);  // outlives it

  // One reader more of each; kNoValue has none.
  void add(const std::vector<ValueId>& values);
  // One reader less of each. A node whose result nobody reads then is gone, and is no reader of its own inputs, where
  // `may_go` says so of it.
  void remove(std::vector<ValueId> values, const std::function<bool(const Node&)>& may_go);
  bool is_gone(const Node& node) const { return gone_.contains(&node); }

 private:
  const Graph& graph_;
  std::vector<int> readers_;  // per value
  std::set<const Node*> gone_;
};

// Whether two nodes run in the same part of a step, so that one kernel may do the work of both.
bool is_in_phase(const Node& a, const Node& b);

// For each value of the graph that `r` makes of `old` the old one that it equals, or kNoValue; `made`: values of the
// new graph, and what they are.
std::vector<ValueId> same_values(Rewriter& r, const Graph& old, const std::vector<std::pair<ValueId, ValueId>>& made);

}  // namespace partita
