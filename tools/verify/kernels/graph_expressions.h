// What a graph says that a value is at a point of a nest's loops: walks back from the value, with the index along each
// of its dimensions, to values that the nest is given.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "ir/nest/affine.h"
#include "ir/nest/reduction_order.h"
#include "tools/verify/kernels/expressions.h"

namespace partita::verifier {

// A rank's graph with composites expanded.
struct CodeView {
  const Graph& graph;
  const std::vector<ValueId>& storage;          // per value: the value whose bytes it is a view of
  const std::vector<const Literal*>& literals;  // per value: the constant that it is
  const std::vector<ValueId>& turned;           // per value: itself with its channels last, or kNoValue
  std::string name(int value) const;
};

// Per value, the value whose bytes it is: reshapes are views.
std::vector<ValueId> storage_of(const Graph& graph);

class GraphExpressions {
 public:
  // `given`: values, never views, that the nest reads from memory. `order`: in which it has to reduce, as its schedule
  // does; nullopt: in any. `columns`: the number, of the elements that a reduction over all columns goes through, that
  // a point is. `own_signs`: bit k, that of the k-th value of either_sign() it is the value itself that is looked at.
  GraphExpressions(const CodeView& code, const std::set<int>& given, const LoopNest& nest,
                   std::optional<ReductionOrder> order, Affine columns, uint32_t own_signs, Expressions& e);

  // The value at index `map`; -1 where split() or status() says why not.
  int value(ValueId v, const IndexMap& map);
  // Of what a relu's gradient looks at the sign of: where it is not given, the relu's result, which has the same, or
  // what it is computed from.
  int signed_as(ValueId v, const IndexMap& map);
  const std::vector<ValueId>& either_sign() const { return either_sign_; }
  // The same of what its node makes, even where it is given.
  int result(ValueId v, const IndexMap& map);
  // The index along each dimension of `shape` from an element number.
  bool fit(const Affine& linear, const Shape& shape, IndexMap& map);

  // A loop that must be two.
  const std::optional<LoopSplit>& split() const { return split_; }
  const absl::Status& status() const { return status_; }
  int fail(absl::Status status);

 private:
  struct Structure;
  bool is_given(ValueId v) const;
  bool stopped() const { return split_.has_value() || !status_.ok(); }
  int constant(const Literal& literal);
  int reshape(const Node& node, ValueId v, const IndexMap& map);
  int broadcast(const Node& node, ValueId v, const IndexMap& map);
  int transpose(const Node& node, ValueId v, const IndexMap& map);
  int slice(const Node& node, ValueId v, const IndexMap& map);
  int reverse(const Node& node, ValueId v, const IndexMap& map);
  int pad(const Node& node, ValueId v, const IndexMap& map);
  int concat(const Node& node, ValueId v, const IndexMap& map);
  int reduction(const Node& node, ValueId v, const IndexMap& map);
  int elementwise(const Node& node, ValueId v, const IndexMap& map);
  IndexMap aligned(const IndexMap& map, const Shape& shape) const;
  // Whether an index is in [begin, end) at every point, or at none; neither is a fault.
  enum class Where { kInside, kOutside, kBoth };
  Where where(const Affine& index, int64_t begin, int64_t end) const;
  const Shape& shape(ValueId v) const { return code_.graph.type(v).shape; }

  const CodeView& code_;
  const std::set<int>& given_;
  const LoopNest& nest_;
  const std::optional<ReductionOrder> order_;
  const Affine columns_;
  const uint32_t own_signs_;
  Expressions& e_;
  const size_t loops_;
  absl::flat_hash_map<std::vector<int64_t>, int> known_;
  std::vector<ValueId> either_sign_;
  std::optional<LoopSplit> split_;
  absl::Status status_;
  int depth_ = 0;
};

// By the names of reductions.
std::optional<ReduceKind> reduce_kind(const OpDef& op);
// Which dimensions of its operand a reduction takes away.
std::vector<bool> reduced_flags(const Node& reduction, size_t rank);
// Those, or all others.
Shape chosen_dims(const Node& reduction, const Shape& shape, bool reduced);

}  // namespace partita::verifier
