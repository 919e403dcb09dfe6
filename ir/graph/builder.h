// Makes a Graph. Nodes take the builder's current segment, origin and block; equal scalar constants are shared.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita {

// What a new node inherits from its surroundings.
struct NodeContext {
  Segment segment = Segment::kForward;
  int32_t origin = -1;
  int32_t block = -1;
  bool weight_gradient = false;
  DeviceKind device = DeviceKind::kDefault;
  int32_t chunk = 0;
  int32_t turn = 0;
};

class Builder {
 public:
  Builder() = default;
  // Goes on with a graph that is given up.
  explicit Builder(Graph graph);

  ValueId input(std::string name, TensorType type, InputKind kind = InputKind::kData);
  ValueId state(State state, TensorType type);  // state.value is filled in
  ValueId constant(Literal literal, std::string name = {});
  void set_next(std::string_view state_name, ValueId next);
  void set_next(ValueId state, ValueId next);  // of the state that is read as this value
  void set_next_of(size_t k, ValueId next) { graph_.states[k].next = next; }
  // State k is a running statistic that the step leaves as `next`.
  void make_running(size_t k, ValueId next);
  void drop_state(size_t k);  // nothing reads it
  void output(std::string name, ValueId value);
  void set_outputs(std::vector<GraphOutput> outputs) { graph_.outputs = std::move(outputs); }
  void set_output(size_t k, ValueId value) { graph_.outputs[k].value = value; }
  int32_t origin(std::string text);  // a new origin
  // The name and the origins of the graph that this one is made from.
  void take_names(const Graph& from);

  // A node whose use is sound by construction: a fault is a compiler bug.
  std::vector<ValueId> emit_all(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {});
  ValueId emit(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return emit_all(op, std::move(inputs), std::move(attrs))[0];
  }
  // The same for a use that comes from outside: InvalidArgument in the op's words.
  absl::StatusOr<std::vector<ValueId>> try_emit(const OpDef& op, std::vector<ValueId> inputs, Attrs attrs = {});

  // Shorthands. Binary ones broadcast as NumPy does; both operands have one element type.
  ValueId add(ValueId a, ValueId b) { return emit("add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return emit("sub", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return emit("mul", {a, b}); }
  ValueId div(ValueId a, ValueId b) { return emit("div", {a, b}); }
  ValueId neg(ValueId a) { return emit("neg", {a}); }
  ValueId select(ValueId c, ValueId a, ValueId b) { return emit("select", {c, a, b}); }
  ValueId scalar(DType dtype, double value);
  ValueId scale(ValueId a, double factor) { return mul(a, scalar(dtype(a), factor)); }
  ValueId add_scalar(ValueId a, double term) { return add(a, scalar(dtype(a), term)); }
  ValueId cast(ValueId a, DType to);
  ValueId reshape(ValueId a, Shape shape);
  ValueId transpose(ValueId a, std::vector<int64_t> permutation);
  ValueId broadcast_to(ValueId a, const Shape& shape);
  // Shapes by value where nodes are made before they are read: that moves the table which `shape(v)` refers into.
  ValueId full(DType dtype, Shape shape, double value) { return broadcast_to(scalar(dtype, value), shape); }
  ValueId reduce(std::string_view op, ValueId a, std::vector<int64_t> dims, bool keep);
  ValueId reduce_sum(ValueId a, std::vector<int64_t> dims, bool keep) {
    return reduce("reduce_sum", a, std::move(dims), keep);
  }
  // Sum times 1/n, n the global count: a split leaves a partial sum.
  ValueId mean(ValueId a, std::vector<int64_t> dims, bool keep);
  // Undoes broadcasting: sums `a` down to `shape`.
  ValueId sum_to(ValueId a, Shape shape);
  // a [..., m, k] (or [..., k, m] where transposed) x b, batch dimensions equal or 1.
  ValueId matmul(ValueId a, ValueId b, bool transpose_a = false, bool transpose_b = false);

  const TensorType& type(ValueId v) const { return graph_.values[v].type; }
  const Shape& shape(ValueId v) const { return graph_.values[v].type.shape; }
  DType dtype(ValueId v) const { return graph_.values[v].type.dtype; }
  int rank(ValueId v) const { return graph_.values[v].type.rank(); }
  // The literal behind a constant, or nullptr.
  const Literal* literal(ValueId v) const;

  NodeContext& context() { return context_; }
  void name(ValueId v, std::string name) { graph_.values[v].name = std::move(name); }
  const Graph& graph() const { return graph_; }
  void mark_weight_gradient(NodeId n, bool computes_one) { graph_.nodes[n].weight_gradient = computes_one; }
  Graph finish() && { return std::move(graph_); }

 private:
  ValueId new_value(TensorType type, std::string name);

  Graph graph_;
  NodeContext context_;
  std::vector<int32_t> constant_of_;  // per value: index into constants, or -1
  std::vector<size_t> state_of_;      // per value: index into states, of the first `indexed_` of them
  size_t indexed_ = 0;
  std::map<std::pair<int, uint64_t>, ValueId> scalars_;
};

// Copies nodes of one graph into another, keeping segments, origins and blocks; the base of most passes.
//
//   Rewriter r(graph);                       // inputs, states, constants and origins are there already
//   for (node : graph.nodes) if (...) r.replace(node.outputs[0], something); else r.copy(node);
//   return std::move(r).finish();            // outputs and states' next values mapped
class Rewriter {
 public:
  explicit Rewriter(const Graph& graph);

  Builder& builder() { return builder_; }
  // The new value for an old one (which must have been copied or replaced).
  ValueId operator()(ValueId old) const;
  bool has(ValueId old) const { return old == kNoValue || map_[old] != kNoValue; }
  void replace(ValueId old, ValueId now);
  // The same node on mapped inputs; returns its new outputs.
  std::vector<ValueId> copy(const Node& node);
  // Puts the builder's context to that of `node`.
  void at(const Node& node);
  Graph finish() &&;

 private:
  const Graph& old_;
  Builder builder_;
  std::vector<ValueId> map_;
};

}  // namespace partita
