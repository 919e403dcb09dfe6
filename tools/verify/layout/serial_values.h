// The serial training graph with its values numbered: values that are computed alike are one, those of an op and of the
// form in which its definition says that it can be split are one, and a value that only moves the data of another is a
// layout of it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "tools/verify/layout/index_map.h"

namespace partita::verifier {

// How often a segment runs: once a step, once for each micro-batch, or on its own.
enum class Runs : uint8_t { kOnce, kEach, kEvaluation };
Runs runs_of(Segment segment);

// Ops whose meaning the verifier knows itself; all others it knows by their formulas.
enum class Movement : uint8_t { kNone, kView, kTranspose, kBroadcast, kSlice, kCollective };
Movement movement_of(const OpDef& op);
// What a view, transpose or broadcast makes of its operand.
absl::StatusOr<IndexMap> moved(const Graph& graph, const Node& node, const IndexMap& operand);

// The graph with ops that have a body in smaller ops, and neither a kernel nor a scalar body, replaced by it, as code
// is generated for it. `from`: per node, the node of `graph` that it comes from. `values`, if not null: per value of
// `graph`, the value that it is there.
absl::StatusOr<Graph> expanded(const Graph& graph, std::vector<NodeId>& from, std::vector<ValueId>* values = nullptr);

// Per factor, how it is split, from how the present operands are; FailedPrecondition names a factor that two operands
// split differently.
absl::StatusOr<std::vector<Pieces>> split_factors(const Formula& formula,
                                                  const std::vector<std::vector<Pieces>>& operands);
// The pieces of an operand or result under a split of the factors.
std::vector<Pieces> under_split(const FormulaOperand& operand, const std::vector<Pieces>& factors);

class SerialValues {
 public:
  // FailedPrecondition where the graph has what the verifier cannot number.
  static absl::StatusOr<SerialValues> create(const Graph& graph);

  const Graph& graph() const { return graph_; }
  const IndexMap& layout(ValueId v) const { return layouts_[v]; }
  bool per_run(int32_t root) const { return per_run_[root]; }
  bool is_zero(int32_t root) const { return zero_[root]; }
  int roots() const { return static_cast<int>(per_run_.size()); }
  // Where a root comes from, for messages.
  const std::string& describe(int32_t root) const { return what_[root]; }

  // The layout of a constant; its root is -1 where the serial program has none such.
  IndexMap constant(const Literal& literal) const;
  // Nodes that apply `op` to these roots (-2 for an absent operand). Evaluation is told apart from training where an
  // operand differs from micro-batch to micro-batch.
  const std::vector<NodeId>& candidates(const OpDef& op, Runs runs, const std::vector<int32_t>& roots) const;
  const Formula& formula(NodeId n) const;

 private:
  int32_t new_root(std::string what, bool per_run);
  absl::Status add_node(NodeId n);
  void add_split_forms(const Graph& graph);
  // The form of a value is the value, if the node that makes it is the first of its kind: its root is new.
  void unify(ValueId form, ValueId value, int32_t first_new);
  std::string place(const OpDef& op, Runs runs, const std::vector<int32_t>& roots) const;

  Graph graph_;
  std::map<ValueId, ValueId> forms_;  // a result of an op's split form -> the op's own
  std::vector<IndexMap> layouts_;
  std::vector<bool> per_run_, zero_;
  std::vector<std::string> what_;
  std::map<std::string, int32_t> constants_;
  std::map<std::string, std::vector<int32_t>> numbered_;  // node's key -> roots of its outputs
  std::map<std::string, std::vector<NodeId>> by_operands_;
  mutable std::map<NodeId, Formula> formulas_;
};

}  // namespace partita::verifier
