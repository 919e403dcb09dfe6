#include "ir/graph/index_bounds.h"

#include <optional>
#include <string_view>
#include <vector>

namespace partita {
namespace {

// The factor of the node's float operands that operand `index` reads by its values, or -1.
int64_t indexed_size(const Graph& graph, const Node& node, size_t index) {
  std::vector<size_t> place(node.inputs.size(), 0);  // among the formula's operands
  size_t present = 0;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if (node.inputs[k] == kNoValue) continue;
    if (k != index && !is_float(graph.type(node.inputs[k]).dtype)) return -1;
    place[k] = present++;
  }
  Formula f = bound_formula(graph, node);
  int64_t size = -1;
  for (size_t x = 0; x < f.factors.size(); ++x) {
    if (f.factors[x].role != FactorRole::kWhole) continue;
    bool elsewhere = false;
    for (size_t k = 0; k < f.inputs.size(); ++k) {
      bool here = has_factor(f.inputs[k], static_cast<int>(x));
      if (here && k == place[index]) return -1;
      elsewhere = elsewhere || here;
    }
    if (!elsewhere) continue;
    if (size >= 0) return -1;
    size = f.factors[x].size;
  }
  return size;
}

// A value that holds a graph input's elements, but for some.
struct Trace {
  int input = -1;
  int64_t mark = 0;       // this element is replaced
  bool from_zero = true;  // elements below zero are not replaced
};

class Tracer {
 public:
  explicit Tracer(const Graph& graph) : graph_(graph), literals_(constant_values(graph)), traces_(graph.values.size()) {
    for (size_t k = 0; k < graph.inputs.size(); ++k) {
      const GraphInput& in = graph.inputs[k];
      if (in.kind == InputKind::kData && is_integer(graph.type(in.value).dtype))
        traces_[in.value].input = static_cast<int>(k);
    }
  }

  const Trace& of(ValueId v) const { return traces_[v]; }

  // Nodes in their order.
  void follow(const Node& node) {
    if (node.outputs.empty() || !is_integer(graph_.type(node.outputs[0]).dtype)) return;
    if (node.op->view || node.op->casts || node.op->name == "slice" || node.op->name == "pad") {
      traces_[node.outputs[0]] = traces_[node.inputs[0]];
    } else if (node.op->name == "concat") {
      traces_[node.outputs[0]] = joined(node);
    } else if (node.op == select_) {
      traces_[node.outputs[0]] = selected(node.inputs[0], node.inputs[1], node.inputs[2]);
    }
  }

 private:
  // Of a part that is traced and constants beside it.
  Trace joined(const Node& node) const {
    Trace found;
    for (ValueId v : node.inputs) {
      if (literals_[v] != nullptr || number(v)) continue;
      if (traces_[v].input < 0 || found.input >= 0) return {};
      found = traces_[v];
    }
    return found;
  }

  // Of "condition ? yes : no", one of which is traced.
  Trace selected(ValueId condition, ValueId yes, ValueId no) const {
    bool in_yes = traces_[yes].input >= 0;
    if (in_yes == (traces_[no].input >= 0)) return {};
    Trace trace = traces_[in_yes ? yes : no];
    bool equal_goes = !in_yes;  // where the condition says "equal", the element is replaced
    if (const Node* inverse = made_by(condition, "not")) {
      equal_goes = !equal_goes;
      condition = inverse->inputs[0];
    }
    const Node* less = made_by(condition, "lt");
    if (less != nullptr && equal_goes && compared(*less, trace.input) == 0) {
      trace.from_zero = false;
      return trace;
    }
    const Node* equal = made_by(condition, equal_goes ? "eq" : "ne");
    std::optional<double> mark = equal == nullptr ? std::nullopt : compared(*equal, trace.input);
    if (!mark) return {};
    trace.mark = static_cast<int64_t>(*mark);
    return trace;
  }

  // The number that the node compares the input's elements with, on its right; of eq and ne on either side.
  std::optional<double> compared(const Node& node, int input) const {
    for (size_t k : {0, 1}) {
      if (traces_[node.inputs[k]].input != input || (k == 1 && node.op->name == "lt")) continue;
      return number(node.inputs[1 - k]);
    }
    return std::nullopt;
  }

  const Node* made_by(ValueId v, std::string_view op) const {
    const Node* node = graph_.producer(v);
    return node != nullptr && node->op->name == op ? node : nullptr;
  }

  // The one value of all elements of a constant, seen through broadcasts and reshapes.
  std::optional<double> number(ValueId v) const {
    for (const Node* node = graph_.producer(v); node != nullptr; node = graph_.producer(v)) {
      if (node->op->name != "broadcast" && node->op->name != "reshape") return std::nullopt;
      v = node->inputs[0];
    }
    const Literal* l = literals_[v];
    if (l == nullptr || elements(l->type.shape) == 0 || !is_uniform(*l)) return std::nullopt;
    return element_f(*l, 0);
  }

  const Graph& graph_;
  const std::vector<const Literal*> literals_;
  std::vector<Trace> traces_;
  const OpDef* select_ = find_op("select");
};

}  // namespace

std::map<std::string, IndexBounds> index_bounds(const Graph& graph) {
  Tracer tracer(graph);
  std::map<std::string, IndexBounds> bounds;
  for (const Node& node : graph.nodes) {
    tracer.follow(node);
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] == kNoValue || tracer.of(node.inputs[k]).input < 0) continue;
      const Trace& trace = tracer.of(node.inputs[k]);
      int64_t size = indexed_size(graph, node, k);
      if (size <= 0) continue;
      bool below = node.op->wraps_indices || !trace.from_zero;
      IndexBounds use{below ? -size : 0, size, trace.mark};
      auto [at, fresh] = bounds.try_emplace(graph.inputs[static_cast<size_t>(trace.input)].name, use);
      if (!fresh) at->second = both(at->second, use);
    }
  }
  return bounds;
}

}  // namespace partita
