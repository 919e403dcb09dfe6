// Matching and replacing in a rank's graph: what undoing compressed gradients is made of.
#pragma once

#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "ir/graph/builder.h"
#include "tools/verify/undo/undo_compression.h"

namespace partita::verifier {

// Looks at a graph from the results to what they are made of.
class GraphReader {
 public:
  explicit GraphReader(const Graph& graph);

  // The node that computes `v`, nullptr: none does, or not by this op.
  const Node* maker(ValueId v) const;
  const Node* made_by(ValueId v, std::string_view op) const;
  ValueId behind_views(ValueId v) const;
  const std::vector<NodeId>& readers(ValueId v) const { return readers_[v]; }
  // The literal that a constant is, or nullptr.
  const Literal* literal(ValueId v) const { return literals_[v]; }
  // The operand of a sum over ranks, in backward or later, of which `v` is the result; nullptr: it is none.
  const Node* sum_over_ranks(ValueId v, ValueId& operand) const;
  // x = term + e, with e a state that is zero at first, read by nothing else, and becomes `left`(x); a view between.
  struct Remainder {
    ValueId term = kNoValue, state = kNoValue, left = kNoValue;
  };
  Remainder remainder_in(ValueId x) const;

 private:
  const Graph& g_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<const Literal*> literals_;
  std::map<ValueId, const State*> state_of_;
};

// A value in place of another: made of what it needs of the graph.
struct Substitute {
  ValueId needs = kNoValue;
  std::function<ValueId(Rewriter&, ValueId needed)> make;
};

// The graph with the values replaced, without `states` and what only served these or the replaced values.
Uncompressed substitute(const Graph& graph, const std::map<ValueId, Substitute>& values,
                        const std::vector<ValueId>& states);

}  // namespace partita::verifier
