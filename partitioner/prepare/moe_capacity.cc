// The exported spelling, with capacity C:
//
//   place = CumSum(choice over tokens) …        counted from 0 by sums, products and casts
//   kept  = choice * Cast(Less(place, C))
//   slot  = Equal(place, [0, 1, … C-1])         one-hot; a product with tokens sends them to the experts
#include "partitioner/prepare/moe_capacity.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "partitioner/layout/batch_plan.h"
#include "partitioner/prepare/resize_dimensions.h"

namespace partita {
namespace {

using OperandPlace = std::pair<NodeId, size_t>;

// Where a graph says its capacity.
struct CapacityForm {
  int64_t capacity = 0;
  std::vector<OperandPlace> slots;                       // 0, 1, … C-1
  std::vector<std::pair<OperandPlace, int64_t>> limits;  // C, or C-1 where places up to it are kept; that minus C
  NodeId count = kNoNode;                                // a running sum over tokens
};

// The n of a constant 0, 1, … n-1 along its last dimension, n > 1; else 0.
int64_t counted_to(const Literal* literal) {
  if (literal == nullptr || literal->type.shape.empty()) return 0;
  int64_t n = elements(literal->type.shape);
  if (n < 2 || literal->type.shape.back() != n) return 0;
  Tensor t = to_tensor(*literal);
  for (int64_t k = 0; k < n; ++k) {
    size_t at = static_cast<size_t>(k);
    if (t.f.empty() ? t.i[at] != k : t.f[at] != static_cast<double>(k)) return 0;
  }
  return n;
}

std::optional<double> number(const Literal* literal) {
  if (literal == nullptr || elements(literal->type.shape) != 1) return std::nullopt;
  Tensor t = to_tensor(*literal);
  return t.f.empty() ? static_cast<double>(t.i[0]) : t.f[0];
}

// The values that are made of counted places, up to the products that tokens are sent by.
std::vector<bool> made_of_places(const Graph& g) {
  std::vector<bool> places(g.values.size(), false);
  for (const Node& node : g.nodes) {
    bool any = node.op->name == "cumsum";
    if (node.op->work == WorkKind::kMemory) {
      for (ValueId v : node.inputs) any = any || (v != kNoValue && places[v]);
    }
    for (ValueId v : node.outputs) places[v] = any;
  }
  return places;
}

// The last node of this op that `from` is made by, without products between them; kNoNode where there is none.
NodeId nearest(const Graph& g, NodeId from, std::string_view op) {
  std::set<NodeId> ahead = {from};
  while (!ahead.empty()) {
    NodeId n = *std::prev(ahead.end());  // operands come first, so that each is met once
    ahead.erase(n);
    const Node& node = g.nodes[static_cast<size_t>(n)];
    if (node.op->name == op) return n;
    if (node.op->work != WorkKind::kMemory) continue;
    for (ValueId v : node.inputs) {
      if (v != kNoValue && g.values[v].producer != kNoNode) ahead.insert(g.values[v].producer);
    }
  }
  return kNoNode;
}

absl::StatusOr<CapacityForm> find_capacity(const Graph& g) {
  std::vector<bool> places = made_of_places(g);
  std::vector<const Literal*> constants = constant_values(g);
  CapacityForm form;
  auto each_comparison = [&](auto visit) {
    for (size_t n = 0; n < g.nodes.size(); ++n) {
      const Node& node = g.nodes[n];
      for (size_t k = 0; node.inputs.size() == 2 && k < 2; ++k) {
        if (places[node.inputs[1 - k]]) visit(node, OperandPlace{static_cast<NodeId>(n), k}, constants[node.inputs[k]]);
      }
    }
  };
  absl::Status status;
  each_comparison([&](const Node& node, OperandPlace at, const Literal* literal) {
    int64_t n = node.op->name == "eq" ? counted_to(literal) : 0;
    if (n == 0) return;
    if (form.capacity != 0 && n != form.capacity)
      status = absl::InvalidArgumentError(cat(g.origin(node), " has ", n, " slots for an expert, where others have ",
                                              form.capacity, "; expected one capacity in all layers"));
    form.capacity = n;
    form.slots.push_back(at);
  });
  PARTITA_RETURN_IF_ERROR(status);
  each_comparison([&](const Node& node, OperandPlace at, const Literal* literal) {
    // place < C, or !(C <= place); place <= C-1, or !(C-1 < place).
    bool strict = (node.op->name == "lt") == (at.second == 1);
    std::optional<double> limit = node.op->name == "lt" || node.op->name == "le" ? number(literal) : std::nullopt;
    int64_t below = strict ? 0 : -1;
    if (limit && *limit == static_cast<double>(form.capacity + below)) form.limits.push_back({at, below});
  });
  if (form.slots.empty() || form.limits.empty())
    return absl::InvalidArgumentError(
        "the model has no experts with a capacity: expected places counted by CumSum, compared with a constant "
        "capacity C by Less and with 0, 1, ... C-1 by Equal; leave the key out");
  form.count = nearest(g, form.slots[0].first, "cumsum");
  return form;
}

// The choices of a token that are counted: of the TopK that `count` comes from.
int64_t choices_of(const Graph& g, NodeId count) {
  NodeId topk = nearest(g, count, "topk");
  if (topk == kNoNode) return 1;
  const Node& node = g.nodes[topk];
  return g.type(node.outputs[0]).shape[static_cast<size_t>(node.attrs.i("dim"))];
}

int64_t wanted_capacity(const Graph& g, const CapacityForm& form, const MoeCapacity& moe, int64_t samples,
                        int64_t group) {
  if (moe.tokens) return *moe.tokens;
  const Node& count = g.nodes[form.count];
  const Shape& shape = g.type(count.outputs[0]).shape;  // tokens along one dimension, experts along the others
  int64_t tokens = shape[static_cast<size_t>(count.attrs.i("dim"))], experts = elements(shape) / tokens;
  double share =
      static_cast<double>(tokens / samples * group * choices_of(g, form.count)) / static_cast<double>(experts);
  return std::max<int64_t>(static_cast<int64_t>(std::ceil(*moe.factor * share - 1e-9)), 1);
}

// The constant at `at` as it is for another capacity.
NewOperand with_capacity(const Graph& g, OperandPlace at, int64_t capacity, int change) {
  TensorType type = g.type(g.nodes[at.first].inputs[at.second]);
  type.shape.back() = capacity;
  Tensor t = Tensor::zeros(type);
  for (size_t k = 0; k < t.f.size(); ++k) t.f[k] = static_cast<double>(k);
  for (size_t k = 0; k < t.i.size(); ++k) t.i[k] = static_cast<int64_t>(k);
  return {to_literal(t), change};
}

NewOperand with_number(const Graph& g, OperandPlace at, int64_t value) {
  Tensor t = Tensor::zeros(g.type(g.nodes[at.first].inputs[at.second]));
  for (double& x : t.f) x = static_cast<double>(value);
  for (int64_t& x : t.i) x = value;
  return {to_literal(t), -1};
}

absl::StatusOr<Graph> with_groups(const Graph& forward, const MoeCapacity& moe) {
  PARTITA_ASSIGN_OR_RETURN(CapacityForm form, find_capacity(forward));
  PARTITA_ASSIGN_OR_RETURN(int64_t samples, samples_of_run(forward));
  int64_t group = moe.group.value_or(samples);
  if (group > samples)
    return absl::InvalidArgumentError(cat("group: ", group, " samples share one capacity, and the graph takes ",
                                          samples, " at a time; expected at most ", samples,
                                          "; export the model with a larger or a symbolic batch dimension"));
  int64_t capacity = wanted_capacity(forward, form, moe, samples, group);
  Resizing resizing;
  if (group != samples) {
    resizing.inputs = static_cast<int>(resizing.changes.size());
    resizing.changes.push_back({"samples", samples, group});
  }
  if (capacity != form.capacity) {
    int change = static_cast<int>(resizing.changes.size());
    resizing.changes.push_back({"slots of an expert", form.capacity, capacity});
    for (OperandPlace at : form.slots) resizing.operands[at] = with_capacity(forward, at, capacity, change);
    for (const auto& [at, below] : form.limits) resizing.operands[at] = with_number(forward, at, capacity + below);
  }
  return resize_dimensions(forward, resizing);
}

}  // namespace

absl::Status check_dropless(const Graph& forward) {
  const auto form = find_capacity(forward);
  if (!form.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(cat(
      "semantics.moe: dropless, and ", forward.origin(forward.nodes[form->slots[0].first]), " gives an expert ",
      form->capacity, " places, so that tokens beyond them are dropped; leave the key out to train it as exported, ",
      "say {capacity: N} with as many places as tokens, or export a model without a capacity"));
}

absl::StatusOr<Graph> set_moe_capacity(const Graph& forward, const MoeCapacity& moe) {
  absl::StatusOr<Graph> graph = with_groups(forward, moe);
  if (!graph.ok()) return with_context(graph.status(), "semantics.moe");
  return graph;
}

}  // namespace partita
