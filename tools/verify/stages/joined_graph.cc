#include "tools/verify/stages/joined_graph.h"

#include <algorithm>

#include "base/status.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {

absl::StatusOr<std::vector<ValueId>> JoinedGraph::emit(const Node& x, std::vector<ValueId> inputs) {
  std::vector<NodeId>& known = made_[{x.op, x.segment, inputs}];
  for (NodeId n : known) {
    const Node& other = b_.graph().nodes[static_cast<size_t>(n)];
    if (other.attrs == x.attrs && other.inputs == inputs) return other.outputs;
  }
  auto [origin, fresh] = origins_.try_emplace(origin_, -1);
  if (fresh) origin->second = b_.origin(origin->first);
  b_.context() = {.segment = x.segment, .origin = origin->second};
  PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, b_.try_emit(*x.op, std::move(inputs), x.attrs));
  nodes_.resize(b_.graph().nodes.size(), at_);
  known.push_back(static_cast<NodeId>(b_.graph().nodes.size() - 1));
  return results;
}

absl::StatusOr<ValueId> JoinedGraph::apply(std::string_view op, std::vector<ValueId> inputs, Attrs attrs) {
  Node n;
  n.op = find_op(op);
  n.attrs = std::move(attrs);
  n.segment = segment_;
  PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, emit(n, std::move(inputs)));
  return results[0];
}

ValueId JoinedGraph::coordinate(int axis) {
  const std::string& name = mesh_.axes[static_cast<size_t>(axis)].name;
  for (const GraphInput& in : b_.graph().inputs) {
    if (in.kind == InputKind::kCoordinate && in.name == name) return in.value;
  }
  program.inputs.push_back({.name = name, .kind = InputKind::kCoordinate});
  return b_.input(name, {DType::kI64, {}}, InputKind::kCoordinate);
}

Attrs JoinedGraph::group(const std::vector<int>& axes) const {
  return {{"axes", std::vector<int64_t>(axes.begin(), axes.end())}, {"parts", mesh_.ways(axes)}};
}

absl::StatusOr<ValueId> JoinedGraph::sum_along(ValueId v, const std::vector<int>& axes) {
  Attrs attrs = group(axes);
  attrs.set("reduce", std::string("sum"));
  return apply("all_reduce", {v}, std::move(attrs));
}

bool JoinedGraph::is_zero(ValueId v) const {
  while (const Node* x = b_.graph().producer(v)) {
    Movement movement = movement_of(*x->op);
    if (x->op->name == "add") {
      if (!is_zero(x->inputs[1])) return false;
    } else if (movement == Movement::kNone || movement == Movement::kCollective)
      return false;
    v = x->inputs[0];
  }
  const Literal* literal = b_.literal(v);
  if (literal == nullptr) return false;
  auto bytes = literal->bytes();
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

absl::StatusOr<ValueId> JoinedGraph::first_along(ValueId v, int axis) {
  PARTITA_ASSIGN_OR_RETURN(ValueId first, apply("eq", {coordinate(axis), b_.scalar(DType::kI64, 0)}, {}));
  return apply("select", {first, v, b_.scalar(b_.dtype(v), 0)}, {});
}

bool JoinedGraph::is_first_along(ValueId v, int axis) const {
  const Node* x = b_.graph().producer(v);
  if (x == nullptr || x->op->name != "eq" || !is_zero(x->inputs[1])) return false;
  return std::any_of(b_.graph().inputs.begin(), b_.graph().inputs.end(), [&](const GraphInput& in) {
    return in.kind == InputKind::kCoordinate && in.value == x->inputs[0] &&
           in.name == mesh_.axes[static_cast<size_t>(axis)].name;
  });
}

}  // namespace partita::verifier
