#include "codegen/prepare/code_graph.h"

#include <string_view>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr int kDeepest = 16;         // free nodes on top of each other
constexpr int kCheapOperations = 8;  // scalar operations of a free node

// Index functions that the nest builder knows by name. Everything else is told by the definition.
constexpr struct {
  std::string_view name;
  NodeRole role;
} kStructure[] = {{"broadcast", NodeRole::kBroadcast},
                  {"transpose", NodeRole::kTranspose},
                  {"slice", NodeRole::kSlice},
                  {"reverse", NodeRole::kReverse},
                  {"pad", NodeRole::kPad},
                  {"concat", NodeRole::kConcat},
                  {"iota", NodeRole::kIota},
                  {"stash", NodeRole::kCopy},
                  {"reduce_sum", NodeRole::kReduction},
                  {"reduce_max", NodeRole::kReduction},
                  {"reduce_min", NodeRole::kReduction},
                  {"reduce_prod", NodeRole::kReduction},
                  {"transfer", NodeRole::kCopy}};

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
    case ScalarOp::kInput:
    case ScalarOp::kConstant:
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
    case ScalarOp::kMax:
    case ScalarOp::kMin:
    case ScalarOp::kNeg:
    case ScalarOp::kAbs:
    case ScalarOp::kEq:
    case ScalarOp::kNe:
    case ScalarOp::kLt:
    case ScalarOp::kLe:
    case ScalarOp::kAnd:
    case ScalarOp::kOr:
    case ScalarOp::kXor:
    case ScalarOp::kNot:
    case ScalarOp::kShl:
    case ScalarOp::kShr:
    case ScalarOp::kSelect:
    case ScalarOp::kCast:
      return true;
    default:
      return false;
  }
}

// Scalar operations of an elementwise node, or too many where one of them is not cheap.
int operations(const Graph& graph, const Node& node) {
  auto types = input_types(graph, node);
  int count = 0;
  for (const ScalarNode& s : scalar_function(*node.op, {node.attrs, types}).nodes) {
    if (!cheap(s.op)) return 1000;
    count += s.a >= 0;
  }
  return count;
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
  return op.name == "reduce_max"    ? ReduceKind::kMax
         : op.name == "reduce_min"  ? ReduceKind::kMin
         : op.name == "reduce_prod" ? ReduceKind::kProd
                                    : ReduceKind::kSum;
}

CodeGraph::CodeGraph(const Graph& g, bool gpu, std::vector<int32_t> phases_of_nodes, bool strict_nests)
    : graph(g),
      on_gpu(gpu),
      fold_units(gpu && !strict_nests ? kDeviceFoldUnits : kFoldUnits),
      strict(strict_nests),
      phases(std::move(phases_of_nodes)),
      literals(constant_values(g)) {
  phases.resize(g.nodes.size(), 0);
  for (const Node& node : g.nodes) roles.push_back(role_of(*node.op));
  mark_kept();
  mark_free();
}

void CodeGraph::mark_kept() {
  kept.assign(graph.values.size(), false);
  for (const GraphOutput& o : graph.outputs) kept[storage(o.value)] = true;
  for (const State& s : graph.states) {
    if (s.next != kNoValue) kept[storage(s.next)] = true;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!is_call(roles[n])) continue;
    for (ValueId v : graph.nodes[n].inputs) {
      if (v != kNoValue) kept[storage(v)] = true;
    }
    for (ValueId v : graph.nodes[n].outputs) kept[v] = true;
  }
}

void CodeGraph::mark_free() {
  // Depth of free nodes below a value; whether it is made of indices, scalars and constants alone.
  std::vector<int> depth(graph.values.size(), 0);
  std::vector<bool> bare(graph.values.size(), false);
  std::vector<std::vector<NodeId>> readers = uses(graph);
  for (size_t v = 0; v < graph.values.size(); ++v) bare[v] = elements(graph.values[v].type.shape) == 1;
  for (const Constant& c : graph.constants) bare[c.value] = bare[c.value] || is_uniform(c.literal);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    int below = 0;
    bool all_bare = true, is_free = false;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      below = std::max(below, depth[v]);
      all_bare = all_bare && bare[v];
    }
    switch (roles[n]) {
      case NodeRole::kView:
      case NodeRole::kBroadcast:
      case NodeRole::kSlice:
      case NodeRole::kIota:
        is_free = true;
        break;
      case NodeRole::kTranspose:
        is_free = keeps_innermost(node, graph.type(node.inputs[0]).shape);
        break;
      case NodeRole::kElementwise:
        if (node.outputs.size() == 1 && elements(graph.type(node.outputs[0]).shape) > 1)
          is_free = all_bare ? operations(graph, node) <= kCheapOperations
                             : is_widening(node) || is_cheap_view(node, readers);
        break;
      default:
        break;
    }
    is_free = is_free && below < kDeepest;
    for (ValueId v : node.outputs) {
      depth[v] = is_free ? below + 1 : 0;
      if (is_free && all_bare) bare[v] = true;
    }
    free.push_back(is_free);
  }
}

bool CodeGraph::is_widening(const Node& node) const {
  const DType from = graph.type(node.inputs[0]).dtype;
  return on_gpu && node.op->casts && !kept[node.outputs[0]] && is_float(from) && dtype_size(from) == 2 &&
         graph.type(node.outputs[0]).dtype == DType::kF32;
}

bool CodeGraph::is_cheap_view(const Node& node, const std::vector<std::vector<NodeId>>& readers) const {
  const TensorType& type = graph.type(node.outputs[0]);
  if (kept[node.outputs[0]] || operations(graph, node) > 2) return false;
  ValueId bulk = kNoValue;
  for (ValueId v : node.inputs) {
    const TensorType& t = graph.type(v);
    if (elements(t.shape) == elements(type.shape) && dtype_size(t.dtype) <= dtype_size(type.dtype) &&
        (bulk == kNoValue || bulk == v)) {
      bulk = v;
    } else if (elements(t.shape) * 16 > elements(type.shape) || literals[v] != nullptr) {
      return false;
    }
  }
  if (bulk == kNoValue) return false;
  // In memory anyway: a call's result, or what a call reads and is widened for others.
  NodeId p = producer(storage(bulk));
  // On a GPU through what moves elements: threads that read at other places read whole sectors all the same.
  while (on_gpu && p != kNoNode && free[p] && !graph.nodes[p].inputs.empty())
    p = producer(storage(graph.nodes[p].inputs[0]));
  if (p != kNoNode && !is_call(roles[p]) && !is_apart(p) && !(node.op->casts && kept[storage(bulk)])) return false;
  return readers[node.outputs[0]].size() <= 3;
}

ValueId CodeGraph::storage(ValueId v) const {
  while (producer(v) != kNoNode && roles[producer(v)] == NodeRole::kView) v = graph.nodes[producer(v)].inputs[0];
  return v;
}

}  // namespace partita
