// Faults of the field in the graphs that a split leaves.
#include <algorithm>
#include <utility>

#include "tools/mutation/field_faults.h"
#include "tools/mutation/graph_edits.h"

namespace partita::field {
namespace {

using Stages = std::vector<LocalProgram>;

// Puts a node with one result in front of node `at`; its value.
ValueId insert(Graph& g, NodeId at, Node node, const TensorType& type) {
  const auto made = static_cast<ValueId>(g.values.size());
  for (Value& v : g.values) v.producer += v.producer >= at;
  g.values.push_back({type, at, 0, ""});
  node.outputs = {made};
  g.nodes.insert(g.nodes.begin() + at, std::move(node));
  return made;
}

// The same node once more, on one of its own results, which everybody reads instead.
void repeat(Graph& g, NodeId n, size_t output) {
  Node again = g.nodes[n];
  const ValueId once = again.outputs[output];
  again.inputs = {once};
  const TensorType type = g.type(once);
  const ValueId twice = insert(g, n + 1, std::move(again), type);
  replace_uses(g, once, twice, n + 1);
}

template <typename Fits>
NodeId find(const Graph& g, Fits fits) {
  const auto at = std::find_if(g.nodes.begin(), g.nodes.end(), fits);
  return at == g.nodes.end() ? kNoNode : static_cast<NodeId>(at - g.nodes.begin());
}

State* state(Graph& g, std::string_view end, StateKind kind = StateKind::kParameter) {
  for (State& s : g.states) {
    const std::string& name = kind == StateKind::kParameter ? s.name : s.parameter;
    if (s.kind == kind && name.ends_with(end)) return &s;
  }
  return nullptr;
}

// A node over ranks, and which of its operands it is.
struct Sum {
  NodeId node = kNoNode;
  size_t k = 0;
};

// Where a parameter's gradient is summed over ranks: after its micro-batches are, or before.
Sum sum_of(Graph& g, std::string_view parameter) {
  const State* acc = state(g, parameter, StateKind::kAccumulator);
  if (acc == nullptr) return {};
  const NodeId n = find(g, [&](const Node& x) {
    return x.op->communicates && std::find(x.inputs.begin(), x.inputs.end(), acc->next) != x.inputs.end();
  });
  if (n == kNoNode) return {};
  const auto& in = g.nodes[n].inputs;
  return {n, static_cast<size_t>(std::find(in.begin(), in.end(), acc->next) - in.begin())};
}

bool unsummed(Graph& g, std::string_view parameter) {
  const Sum sum = sum_of(g, parameter);
  if (sum.node == kNoNode || g.nodes[sum.node].op->name != "all_reduce") return false;
  replace_uses(g, g.nodes[sum.node].outputs[sum.k], g.nodes[sum.node].inputs[sum.k]);
  return true;
}

bool summed_twice(Graph& g, std::string_view parameter) {
  const Sum sum = sum_of(g, parameter);
  if (sum.node == kNoNode || g.nodes[sum.node].op->name != "all_reduce") return false;
  repeat(g, sum.node, sum.k);
  return true;
}

bool is_sum(const Node& n) { return n.op->name == "all_reduce" && n.attrs.s("reduce") == "sum"; }

bool skip(Graph& g, NodeId n, size_t k = 0) {
  if (n == kNoNode) return false;
  replace_uses(g, g.nodes[n].outputs[k], g.nodes[n].inputs[k]);
  return true;
}

// The constant 0, i64[].
ValueId zero(Graph& g) {
  const TensorType type{DType::kI64, {}};
  const auto made = static_cast<ValueId>(g.values.size());
  g.values.push_back({type, kNoNode, 0, ""});
  g.constants.push_back({made, to_literal(Tensor::zeros(type))});
  return made;
}

// Each rank takes what the first takes, where a slice by coordinate `fits`.
template <typename Fits>
bool first_part(Graph& g, Fits fits) {
  const ValueId none = zero(g);
  bool any = false;
  for (Node& n : g.nodes) {
    if (n.op->name != "shard_slice" || !fits(n)) continue;
    n.inputs[1] = none;
    any = true;
  }
  return any;
}

// What of the gradients' squares is added up on the first of ranks that have it alike.
NodeId counted_once(const Graph& g) {
  return find(g, [&](const Node& n) { return n.op->name == "select" && n.segment == Segment::kUpdate; });
}

// The sum over ranks of the gradients' squares.
NodeId sum_of_squares(const Graph& g) {
  return find(g, [&](const Node& n) {
    return is_sum(n) && n.segment == Segment::kUpdate && g.type(n.outputs[0]).dtype == DType::kF64;
  });
}

}  // namespace

bool norm_unsummed(Stages& s) { return unsummed(s[0].graph, "ln_1.weight"); }
bool norm_summed_twice(Stages& s) { return summed_twice(s[0].graph, "ln_1.weight"); }
bool router_unsummed(Stages& s) { return unsummed(s[0].graph, "moe.gate"); }
bool router_counted_twice(Stages& s) { return summed_twice(s[0].graph, "moe.gate"); }

bool product_unsummed(Stages& s) {
  Graph& g = s[0].graph;
  return skip(g, find(g, [&](const Node& n) {
                return is_sum(n) && n.segment == Segment::kForward && g.type(n.outputs[0]).rank() == 3 &&
                       g.producer(n.inputs[0])->op->name == "reshape";
              }));
}

bool bias_on_each_rank(Stages& s) {
  Graph& g = s[0].graph;
  const State* bias = state(g, "proj.bias");
  if (bias == nullptr) return false;
  const NodeId add = find(g, [&](const Node& n) { return n.op->name == "add" && n.inputs[1] == bias->value; });
  if (add == kNoNode) return false;
  const ValueId sum = g.nodes[add].inputs[0];
  NodeId reduce = g.values[sum].producer;
  if (reduce < 0 || !is_sum(g.nodes[reduce])) return false;
  Node own = g.nodes[add];
  own.inputs[0] = g.nodes[reduce].inputs[0];
  replace_uses(g, g.nodes[add].outputs[0], sum);
  const ValueId with_bias = insert(g, reduce, std::move(own), g.type(sum));
  g.nodes[reduce + 1].inputs[0] = with_bias;
  return true;
}

bool rows_of_first_rank(Stages& s) {
  Graph& g = s[0].graph;
  return first_part(g, [&](const Node& n) {
    return n.segment == Segment::kForward && g.type(n.inputs[0]).dtype == DType::kI64 &&
           g.type(n.inputs[0]).shape == Shape{64};
  });
}

bool norm_counts_replicas(Stages& s) {
  Graph& g = s[0].graph;
  const NodeId n = counted_once(g);
  if (n == kNoNode) return false;
  replace_uses(g, g.nodes[n].outputs[0], g.nodes[n].inputs[1]);
  return true;
}

bool norm_of_own_part(Stages& s) {
  for (LocalProgram& stage : s) {
    if (!skip(stage.graph, sum_of_squares(stage.graph))) return false;
  }
  return true;
}

// Parts that the ranks hold of a gradient count on the first rank alone, as what they hold alike does.
bool norm_without_a_part(Stages& s) {
  Graph& g = s[0].graph;
  const NodeId once = counted_once(g);
  if (once == kNoNode) return false;
  for (NodeId n = once + 1; n < static_cast<NodeId>(g.nodes.size()); ++n) {
    const Node& x = g.nodes[n];
    const Node* term = x.op->name == "add" ? g.producer(x.inputs[1]) : nullptr;
    if (term == nullptr || term->op->name != "cast" || x.segment != Segment::kUpdate ||
        g.type(x.inputs[1]).dtype != DType::kF64)
      continue;
    Node select = g.nodes[once];
    select.inputs[1] = x.inputs[1];
    const TensorType type = g.type(x.inputs[1]);
    const ValueId masked = insert(g, n, std::move(select), type);
    g.nodes[n + 1].inputs[1] = masked;
    return true;
  }
  return false;
}

// Ranks with other experts add up the gradients of theirs.
bool experts_mixed(Stages& s) {
  Graph& g = s[0].graph;
  const NodeId sum = find(g, [](const Node& n) { return is_sum(n) && n.segment == Segment::kReduce; });
  for (const State& acc : g.states) {
    if (sum == kNoNode || acc.kind != StateKind::kAccumulator || acc.parameter.find("moe.wi") == std::string::npos)
      continue;
    Node mixed = g.nodes[sum];
    mixed.inputs = {acc.next};
    const TensorType type = g.type(acc.next);
    const ValueId next = acc.next, made = insert(g, sum + 1, std::move(mixed), type);
    for (NodeId n = sum + 2; n < static_cast<NodeId>(g.nodes.size()); ++n)
      std::replace(g.nodes[n].inputs.begin(), g.nodes[n].inputs.end(), next, made);
    return true;
  }
  return false;
}

bool balance_of_own_tokens(Stages& s) {
  Graph& g = s[0].graph;
  return skip(
      g, find(g, [&](const Node& n) { return is_sum(n) && n.segment == Segment::kForward && n.outputs.size() == 2; }));
}

// A matrix is gathered as it was before the iteration that updates it.
bool stale_gather(Stages& s) {
  Graph& g = s[0].graph;
  for (Node& n : g.nodes) {
    if (n.op->name != "all_gather" || n.segment != Segment::kUpdate) continue;
    const Node *sum = g.producer(n.inputs[0]), *term = sum == nullptr ? nullptr : g.producer(sum->inputs[0]);
    if (term == nullptr || g.type(term->inputs[0]) != g.type(n.inputs[0])) return false;
    n.inputs[0] = term->inputs[0];
    return true;
  }
  return false;
}

// Each rank divides by the number of its own tokens.
bool mean_of_own_tokens(Stages& s) {
  Graph& g = s[0].graph;
  return skip(g, find(g, [&](const Node& n) {
                return is_sum(n) && n.segment == Segment::kForward && g.type(n.outputs[0]).rank() == 0;
              }));
}

bool last_micro_batch_alone(Stages& s) {
  Graph& g = s[0].graph;
  const State* acc = state(g, "mlp.up.weight", StateKind::kAccumulator);
  const Node* sum = acc == nullptr ? nullptr : g.producer(acc->next);
  if (sum == nullptr || sum->op->name != "accumulate") return false;
  replace_uses(g, sum->outputs[0], sum->inputs[1]);
  return true;
}

// A sum over micro-batches goes on from the last step's.
bool gradient_not_reset(Stages& s) {
  State* acc = state(s[0].graph, "mlp.up.weight", StateKind::kAccumulator);
  if (acc == nullptr) return false;
  acc->kind = StateKind::kRunning;
  acc->initial = InitialRule{};
  return true;
}

bool parameter_left_out(Stages& s) {
  State* x = state(s[0].graph, "ln_f.weight");
  if (x == nullptr) return false;
  x->next = kNoValue;
  return true;
}

bool positions_of_first_rank(Stages& s) {
  const Graph& g = s[0].graph;
  return first_part(
      s[0].graph, [&](const Node& n) { return n.segment == Segment::kForward && is_float(g.type(n.inputs[0]).dtype); });
}

bool labels_of_first_rank(Stages& s) {
  const Graph& g = s[0].graph;
  return first_part(s[0].graph, [&](const Node& n) {
    return n.segment == Segment::kForward && g.type(n.inputs[0]).dtype == DType::kBool;
  });
}

// The stage that updates a tied weight adds nothing of the other stage's gradient to its own.
bool tied_on_one_side(Stages& s) {
  Graph& g = s[0].graph;
  const NodeId add = find(g, [&](const Node& n) {
    if (n.op->name != "add" || n.inputs.size() != 2) return false;
    const Node* term = g.producer(n.inputs[1]);
    return term != nullptr && term->op->name == "recv" && g.type(n.outputs[0]).rank() == 2;
  });
  return skip(g, add);
}

// Random numbers are drawn by an element's index in the whole tensor.
bool masks_alike(Stages& s) {
  const Graph& g = s[0].graph;
  return first_part(s[0].graph, [&](const Node& n) { return g.type(n.inputs[0]).dtype == DType::kI64; });
}

bool masks_apart(Stages& s) {
  Graph& g = s[0].graph;
  ValueId coordinate = kNoValue;
  for (const GraphInput& in : g.inputs) {
    if (in.kind == InputKind::kCoordinate) coordinate = in.value;
  }
  for (NodeId n = static_cast<NodeId>(g.nodes.size()); n-- > 0 && coordinate != kNoValue;) {
    const Node& x = g.nodes[n];
    if (x.op->name != "uniform") continue;
    const NodeId add = find(g, [](const Node& y) { return y.op->name == "add"; });
    Node shifted = g.nodes[add];
    shifted.segment = x.segment;
    shifted.inputs = {x.inputs[0], coordinate};
    const TensorType type = g.type(x.inputs[0]);
    const ValueId index = insert(g, n, std::move(shifted), type);
    g.nodes[n + 1].inputs[0] = index;
    return true;
  }
  return false;
}

// Rows that pad the vocabulary count in the loss.
bool statistics_unmasked(Stages& s) {
  Graph& g = s[0].graph;
  const NodeId n = find(g, [&](const Node& x) {
    return x.op->name == "select" && x.segment == Segment::kForward && is_float(g.type(x.outputs[0]).dtype) &&
           g.type(x.inputs[1]) == g.type(x.outputs[0]) && g.type(x.outputs[0]).rank() == 2;
  });
  if (n == kNoNode) return false;
  replace_uses(g, g.nodes[n].outputs[0], g.nodes[n].inputs[1]);
  return true;
}

}  // namespace partita::field
