#include "passes/forward/biased_product.h"

namespace partita {
namespace {

const Node* maker(const Graph& graph, ValueId v) {
  const Node* made = graph.producer(v);
  while (made != nullptr && made->op->view) made = graph.producer(made->inputs[0]);
  return made;
}

bool is(const Node* node, std::string_view op) { return node != nullptr && node->op->name == op; }

}  // namespace

bool is_biased_product(const Graph& graph, const Dependence& dependence, const Node& node) {
  const bool rounded = node.op->name == "cast";
  const Node* add = rounded ? maker(graph, node.inputs[0]) : &node;
  if (!is(add, "add")) return false;
  for (size_t k = 0; k < 2; ++k) {
    if (dependence.on_data(add->inputs[1 - k]) || graph.type(add->inputs[k]).shape != graph.type(add->outputs[0]).shape)
      continue;
    const Node* made = maker(graph, add->inputs[k]);
    if (rounded) made = is(made, "cast") ? maker(graph, made->inputs[0]) : nullptr;
    if (made != nullptr && made->op->work == WorkKind::kMatrix &&
        graph.type(made->outputs[0]).dtype == graph.type(node.outputs[0]).dtype)
      return true;
  }
  return false;
}

}  // namespace partita
