// A small toolkit for recognisers: patterns are values, made of each other, and match the way exporters spell one thing
// differently.
//
//   Pattern x = any("x");
//   Pattern gelu = product({op("add", {op("erf", {product({x}, std::sqrt(0.5))}), number(1)}), x}, 0.5);
//
// Matching backtracks over operand orders of commutative ops and over the ways a product can be grouped. Casts between
// float types are looked through.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/graph/builder.h"
#include "passes/rewrite/pass.h"

namespace partita {

// What patterns ask of a graph, computed once. Keeps a reference to the graph.
class GraphFacts {
 public:
  explicit GraphFacts(const Graph& graph);

  const Graph& graph() const { return graph_; }
  const TensorType& type(ValueId v) const { return graph_.type(v); }
  const Shape& shape(ValueId v) const { return graph_.type(v).shape; }
  // The node that makes `v`, where it is of this op; else nullptr.
  const Node* made_by(ValueId v, std::string_view op) const;
  NodeId id(const Node& node) const { return static_cast<NodeId>(&node - graph_.nodes.data()); }
  // The literal of a constant or of a frozen state that has one.
  const Literal* literal(ValueId v) const { return literals_[v]; }
  // Whether `v` is a constant of the graph; a frozen state is not.
  bool is_constant(ValueId v) const { return literals_[v] != nullptr && !frozen_[v]; }
  // The one value of all elements: of a uniform constant, seen through broadcasts, reshapes and casts.
  std::optional<double> number(ValueId v) const;
  // Whether all that read `v` are among `nodes` (sorted): no other node, no output, no state.
  bool read_only_by(ValueId v, const std::vector<NodeId>& nodes) const;

 private:
  const Graph& graph_;
  std::vector<const Literal*> literals_;
  std::vector<std::vector<NodeId>> uses_;
  std::vector<bool> frozen_;
  std::vector<bool> wanted_;  // outputs and states' next values
  mutable absl::flat_hash_map<ValueId, std::optional<double>> numbers_;
};

// What a pattern has bound so far.
struct Match {
  std::vector<std::pair<std::string, ValueId>> values;
  std::vector<std::pair<std::string, double>> numbers;
  std::vector<NodeId> nodes;  // matched nodes, the root first; a node may stand here more than once

  bool has(std::string_view name) const;
  ValueId operator[](
      std::string_view name) const;  // a value that the pattern names; a name that is not bound is a compiler bug
  double number(std::string_view name) const;
};

using MatchNext = std::function<bool()>;
// Matches `v`, then the rest through `next`; leaves the match as it was where either fails.
using Pattern = std::function<bool(const GraphFacts& facts, Match& match, ValueId v, const MatchNext& next)>;

// Any value; one name stands for one value throughout.
Pattern any(std::string name);
// A uniform constant, near `value` as the element type can say it; or of any value, under a name.
Pattern number(double value);
Pattern number(std::string name);
// The first output of a node of this op, its inputs as given (absent ones are not matched). Both orders of commutative
// ops.
Pattern op(std::string_view name, std::vector<Pattern> inputs);
// What `pattern` matches, its value under a name.
Pattern named(std::string name, Pattern pattern);
Pattern one_of(std::vector<Pattern> patterns);

struct PatternFactor {
  PatternFactor(Pattern p, bool inverse = false)
      : pattern(std::move(p)), inverse(inverse) {}  // NOLINT: made from patterns
  Pattern pattern;
  bool inverse;  // stands below the line
};
PatternFactor inverse(Pattern pattern);
// The factors in any order and grouping of mul, div, neg and small powers, times constants that amount to
// `coefficient`.
Pattern product(std::vector<PatternFactor> factors, double coefficient = 1);
// The same with any coefficient, under a name.
Pattern product(std::vector<PatternFactor> factors, std::string coefficient);

// Relative error that a constant of this type may have.
double constant_tolerance(DType dtype);
bool is_near(double found, double expected, DType dtype);

// The first way to match `v` that `accept` accepts too, all matched values but `v` having no readers outside.
std::optional<Match> find_match(const GraphFacts& facts, const Pattern& pattern, ValueId v,
                                const std::function<bool(const Match&)>& accept = {});
// The last condition alone: nobody outside needs what the nodes compute, but for `root`. Sorts `nodes` and drops
// repetitions.
bool is_closed(const GraphFacts& facts, std::vector<NodeId>& nodes, ValueId root);

// Whether `v` is 0, 1, … n-1 along the last dimension, the others of size 1: a constant or an iota, reshaped or cast.
bool counts_up(const GraphFacts& facts, ValueId v, int64_t n);

// A recognised piece: nodes that go, the value that stays, and what makes it anew.
struct Replacement {
  std::vector<NodeId> nodes;
  ValueId root;
  std::function<ValueId(Rewriter&)> emit;  // called where the root was made, its context set
};
using FindReplacement = std::function<std::optional<Replacement>(const GraphFacts&, const Node&)>;

// Asks `find` for each node, last first, so that a larger piece wins over a smaller one inside it; nodes of one piece
// are not part of another. Replaces, and drops what is dead then.
absl::StatusOr<Graph> replace_all(const Graph& graph, const PassContext& context, const FindReplacement& find);

}  // namespace partita
