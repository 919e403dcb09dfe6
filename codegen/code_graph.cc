#include "codegen/code_graph.h"

#include <string_view>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr int kDeepest = 16;        // free nodes on top of each other
constexpr int kCheapOperations = 8;  // scalar operations of a free node

// Index functions that the nest builder knows by name. Everything else is told by the definition.
constexpr struct {
  std::string_view name;
  NodeRole role;
} kStructure[] = {{"broadcast", NodeRole::kBroadcast}, {"transpose", NodeRole::kTranspose}, {"slice", NodeRole::kSlice},           {"reverse", NodeRole::kReverse},
                  {"pad", NodeRole::kPad},             {"concat", NodeRole::kConcat},       {"iota", NodeRole::kIota},             {"reduce_sum", NodeRole::kReduction},
                  {"reduce_max", NodeRole::kReduction}, {"reduce_min", NodeRole::kReduction}, {"reduce_prod", NodeRole::kReduction}};

// Transposing that leaves the innermost dimension in its place only changes which rows are read.
bool keeps_innermost(const Node& node, const Shape& shape) {
  const auto& permutation = node.attrs.ints("permutation");
  for (size_t d = permutation.size(); d-- > 0;) {
    if (shape[permutation[d]] == 1) continue;
    for (size_t e = static_cast<size_t>(permutation[d]) + 1; e < shape.size(); ++e) {
      if (shape[e] != 1) return false;
    }
    return true;
  }
  return true;
}

bool cheap(ScalarOp op) {
  switch (op) {
    case ScalarOp::kInput: case ScalarOp::kConstant: case ScalarOp::kAdd: case ScalarOp::kSub: case ScalarOp::kMul: case ScalarOp::kMax: case ScalarOp::kMin:
    case ScalarOp::kNeg: case ScalarOp::kAbs: case ScalarOp::kEq: case ScalarOp::kNe: case ScalarOp::kLt: case ScalarOp::kLe: case ScalarOp::kAnd:
    case ScalarOp::kOr: case ScalarOp::kXor: case ScalarOp::kNot: case ScalarOp::kShl: case ScalarOp::kShr: case ScalarOp::kSelect: case ScalarOp::kCast:
      return true;
    default: return false;
  }
}

}  // namespace

NodeRole role_of(const OpDef& op) {
  if (op.communicates) return NodeRole::kCollective;
  if (op.view) return NodeRole::kView;
  for (const auto& s : kStructure) {
    if (s.name == op.name) return s.role;
  }
  if (op.kernel) return NodeRole::kLibrary;
  PARTITA_CHECK(op.scalar != nullptr, cat("no code for op ", op.name));
  return NodeRole::kElementwise;
}

ReduceKind reduce_kind_of(const OpDef& op) {
  return op.name == "reduce_max" ? ReduceKind::kMax : op.name == "reduce_min" ? ReduceKind::kMin : op.name == "reduce_prod" ? ReduceKind::kProd : ReduceKind::kSum;
}

CodeGraph::CodeGraph(const Graph& g) : graph(g), literals(constant_values(g)) {
  // Depth of free nodes below a value; whether it is made of indices, scalars and constants alone.
  std::vector<int> depth(g.values.size(), 0);
  std::vector<bool> bare(g.values.size(), false);
  for (size_t v = 0; v < g.values.size(); ++v) bare[v] = elements(g.values[v].type.shape) == 1;
  for (const Constant& c : g.constants) bare[c.value] = bare[c.value] || is_uniform(c.literal);
  for (const Node& node : g.nodes) {
    NodeRole role = role_of(*node.op);
    int below = 0, operations = 0;
    bool all_bare = true;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      below = std::max(below, depth[v]);
      all_bare = all_bare && bare[v];
    }
    bool is_free = false;
    switch (role) {
      case NodeRole::kView: case NodeRole::kBroadcast: case NodeRole::kSlice: case NodeRole::kIota: is_free = true; break;
      case NodeRole::kTranspose: is_free = keeps_innermost(node, g.type(node.inputs[0]).shape); break;
      case NodeRole::kElementwise: {
        if (!all_bare || node.outputs.size() != 1 || elements(g.type(node.outputs[0]).shape) == 1) break;
        auto types = input_types(g, node);
        is_free = true;
        for (const ScalarNode& s : scalar_function(*node.op, {node.attrs, types}).nodes) {
          is_free = is_free && cheap(s.op);
          operations += s.a >= 0;
        }
        is_free = is_free && operations <= kCheapOperations;
        break;
      }
      default: break;
    }
    is_free = is_free && below < kDeepest;
    for (ValueId v : node.outputs) {
      depth[v] = is_free ? below + 1 : 0;
      if (is_free && all_bare) bare[v] = true;
    }
    roles.push_back(role);
    free.push_back(is_free);
  }
}

ValueId CodeGraph::storage(ValueId v) const {
  while (producer(v) != kNoNode && roles[producer(v)] == NodeRole::kView) v = graph.nodes[producer(v)].inputs[0];
  return v;
}

}  // namespace partita
