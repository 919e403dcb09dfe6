#include "passes/rewrite/clean_up.h"

#include "absl/container/flat_hash_map.h"
#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita {
namespace {

// A text that is equal for equal attributes.
std::string attrs_key(const Attrs& attrs) {
  std::string key;
  for (const auto& [name, value] : attrs.items()) {
    append(key, name, "=", value.index(), ":");
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, DType>) {
            append(key, dtype_name(v));
          } else if constexpr (std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<double>>) {
            for (const auto& x : v) append(key, x, ",");
          } else {
            append(key, v);
          }
        },
        value);
    key += ';';
  }
  return key;
}

ValueId simpler(const OpDef& op, const OpUse& use);

// Moves elements first and widens them afterwards: fewer bytes are moved, and where the next reader wants them narrow,
// none are widened. What a product makes it widens itself.
ValueId moved_before_widened(const OpDef& op, const OpUse& use) {
  Builder& b = use.b;
  std::vector<ValueId> narrow;
  std::vector<TensorType> types;
  for (ValueId v : use.inputs) {
    const Node* cast = b.graph().producer(v);
    if (cast == nullptr || !cast->op->casts) return kNoValue;
    const ValueId from = cast->inputs[0];
    const Node* maker = b.graph().producer(from);
    if (maker == nullptr || maker->op->work == WorkKind::kMatrix || !widens(b.dtype(from), b.dtype(v)) ||
        (!narrow.empty() && b.dtype(from) != types[0].dtype))
      return kNoValue;
    narrow.push_back(from);
    types.push_back(b.type(from));
  }
  ValueId moved = simpler(op, {b, use.attrs, types, narrow, {}, {}});
  if (moved == kNoValue) moved = b.emit(op.name, std::move(narrow), use.attrs);
  return b.cast(moved, use.types[0].dtype);
}

// A value that is the use's only output, for less work, or kNoValue.
ValueId simpler(const OpDef& op, const OpUse& use) {
  const ValueId now = op.simpler != nullptr ? op.simpler(use) : kNoValue;
  if (now == kNoValue) return op.moves ? moved_before_widened(op, use) : kNoValue;
  const Node* made = use.b.graph().producer(now);
  if (made == nullptr || !made->op->moves) return now;
  const Node node = *made;  // a copy: the builder's nodes move as it grows
  std::vector<TensorType> types;
  for (ValueId v : node.inputs) types.push_back(use.b.type(v));
  const ValueId moved = moved_before_widened(*node.op, {use.b, node.attrs, types, node.inputs, {}, {}});
  return moved == kNoValue ? now : moved;
}

}  // namespace

absl::StatusOr<Graph> remove_dead_nodes(const Graph& graph, const PassContext&) {
  std::vector<bool> live(graph.values.size(), false);
  for (const GraphOutput& o : graph.outputs) live[o.value] = true;
  for (const State& s : graph.states) {
    if (s.next != kNoValue) live[s.next] = true;
  }
  std::vector<bool> keep(graph.nodes.size(), false);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    for (ValueId v : node.outputs) keep[n] = keep[n] || live[v];
    if (!keep[n]) continue;
    for (ValueId v : node.inputs) {
      if (v != kNoValue) live[v] = true;
    }
  }
  Graph pruned = graph;
  std::erase_if(pruned.constants, [&](const Constant& c) { return !live[c.value]; });
  Rewriter r(pruned);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (keep[n]) r.copy(graph.nodes[n]);
  }
  return std::move(r).finish();
}

absl::StatusOr<Graph> merge_duplicates(const Graph& graph, const PassContext&) {
  Rewriter r(graph);
  absl::flat_hash_map<std::string, ValueId> constants;
  for (const Constant& c : graph.constants) {
    if (byte_size(c.literal.type) > 4096) continue;
    auto bytes = c.literal.bytes();
    std::string key = cat(to_string(c.literal.type), ":",
                          std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    auto [at, fresh] = constants.try_emplace(std::move(key), r(c.value));
    if (!fresh) r.replace(c.value, at->second);
  }
  absl::flat_hash_map<std::string, std::vector<ValueId>> seen;
  for (const Node& node : graph.nodes) {
    if (node.op->communicates) {
      r.copy(node);
      continue;
    }
    std::string key = cat(node.op->name, "|", static_cast<int>(node.segment), "|");
    for (ValueId v : node.inputs) append(key, r(v), ",");
    key += attrs_key(node.attrs);
    auto at = seen.find(key);
    if (at == seen.end()) {
      seen.emplace(std::move(key), r.copy(node));
    } else {
      for (size_t k = 0; k < node.outputs.size(); ++k) r.replace(node.outputs[k], at->second[k]);
    }
  }
  return std::move(r).finish();
}

absl::StatusOr<Graph> simplify(const Graph& graph, const PassContext&) {
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    r.at(node);
    ValueId now = kNoValue;
    if (node.outputs.size() == 1) {
      std::vector<ValueId> in;
      std::vector<TensorType> types;
      for (ValueId v : node.inputs) {
        in.push_back(r(v));
        types.push_back(v == kNoValue ? TensorType{} : graph.type(v));
      }
      now = simpler(*node.op, {r.builder(), node.attrs, types, in, {}, {}});
    }
    if (now == kNoValue) {
      r.copy(node);
    } else {
      r.replace(node.outputs[0], now);
    }
  }
  return std::move(r).finish();
}

}  // namespace partita
