#include "passes/clean_up.h"

#include "absl/container/flat_hash_map.h"
#include "base/cat.h"
#include "base/status.h"
#include "ir/builder.h"

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

bool is_scalar_constant(const Builder& b, ValueId v, double value) {
  const Literal* l = b.literal(v);
  return l != nullptr && elements(l->type.shape) == 1 && is_float(l->type.dtype) && element_f(*l, 0) == value;
}

bool is_op(const Node* node, std::string_view name) { return node != nullptr && node->op->name == name; }

bool swaps_last_two(const std::vector<int64_t>& permutation) {
  size_t r = permutation.size();
  if (r < 2 || permutation[r - 2] != static_cast<int64_t>(r) - 1 || permutation[r - 1] != static_cast<int64_t>(r) - 2)
    return false;
  for (size_t k = 0; k + 2 < r; ++k) {
    if (permutation[k] != static_cast<int64_t>(k)) return false;
  }
  return true;
}

// What the node's only output may be instead, or kNoValue. `in` are its inputs in the new graph.
ValueId simpler(Builder& b, const Node& node, const TensorType& type, const std::vector<ValueId>& in) {
  std::string_view op = node.op->name;
  auto producer = [&](ValueId v) { return b.graph().producer(v); };
  if (op == "add" || op == "mul") {
    double neutral = op == "add" ? 0 : 1;
    for (int k = 0; k < 2; ++k) {
      if (is_scalar_constant(b, in[k], neutral) && b.type(in[1 - k]) == type && producer(in[1 - k]) != nullptr)
        return in[1 - k];
    }
  }
  if (op == "reshape") {
    const Node* p = producer(in[0]);
    ValueId from = is_op(p, "reshape") ? p->inputs[0] : in[0];
    if (b.shape(from) == type.shape) return from;
    if (from != in[0]) return b.reshape(from, type.shape);
  }
  if (op == "broadcast" && b.type(in[0]) == type) return in[0];
  if (op == "cast" && b.type(in[0]) == type) return in[0];
  if (op == "transpose") {
    const Node* p = producer(in[0]);
    std::vector<int64_t> permutation = node.attrs.ints("permutation");
    ValueId from = in[0];
    if (is_op(p, "transpose")) {
      const std::vector<int64_t>& first = p->attrs.ints("permutation");
      for (int64_t& d : permutation) d = first[d];
      from = p->inputs[0];
    }
    bool identity = true;
    for (size_t k = 0; k < permutation.size(); ++k) identity &= permutation[k] == static_cast<int64_t>(k);
    if (identity || from != in[0]) return b.transpose(from, std::move(permutation));
  }
  if (op == "matmul") {
    bool t[2] = {node.attrs.i("transpose_a", 0) != 0, node.attrs.i("transpose_b", 0) != 0}, changed = false;
    ValueId x[2] = {in[0], in[1]};
    for (int k = 0; k < 2; ++k) {
      const Node* p = producer(in[k]);
      if (!is_op(p, "transpose") || !swaps_last_two(p->attrs.ints("permutation"))) continue;
      x[k] = p->inputs[0];
      t[k] = !t[k];
      changed = true;
    }
    if (changed) return b.matmul(x[0], x[1], t[0], t[1]);
  }
  return kNoValue;
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
    if (node.outputs.size() == 1 && !node.op->communicates) {
      std::vector<ValueId> in;
      for (ValueId v : node.inputs) in.push_back(r(v));
      now = simpler(r.builder(), node, graph.type(node.outputs[0]), in);
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
