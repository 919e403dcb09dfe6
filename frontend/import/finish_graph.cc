#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/importer.h"
#include "frontend/import/rotary_frequencies.h"
#include "ir/recipe/recipe.h"

namespace partita {
namespace {

std::vector<bool> needed_values(const Graph& g) {
  std::vector<bool> needed(g.values.size(), false);
  for (const GraphOutput& out : g.outputs) needed[out.value] = true;
  for (const State& s : g.states) {
    if (s.next != kNoValue) needed[s.next] = true;
  }
  for (size_t n = g.nodes.size(); n-- > 0;) {
    const Node& node = g.nodes[n];
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return needed[v]; })) continue;
    for (ValueId v : node.outputs) needed[v] = true;  // a node's outputs stay together
    for (ValueId v : node.inputs) {
      if (v != kNoValue) needed[v] = true;
    }
  }
  return needed;
}

// Values that a float output depends on through ops that have gradients.
std::vector<bool> differentiable_values(const Graph& g) {
  std::vector<bool> live(g.values.size(), false);
  for (const GraphOutput& out : g.outputs) live[out.value] = is_float(g.type(out.value).dtype);
  for (size_t n = g.nodes.size(); n-- > 0;) {
    const Node& node = g.nodes[n];
    if (!node.op->gradient ||
        std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return live[v]; }))
      continue;
    for (ValueId v : node.inputs) {
      if (v != kNoValue && is_float(g.type(v).dtype)) live[v] = true;
    }
  }
  return live;
}

void compact(Graph& g, const std::vector<bool>& needed) {
  std::vector<ValueId> map(g.values.size(), kNoValue);
  std::vector<Value> values;
  auto keep = [&](ValueId v) {
    map[v] = static_cast<ValueId>(values.size());
    values.push_back(std::move(g.values[v]));
  };
  for (GraphInput& in : g.inputs) keep(in.value), in.value = map[in.value];
  std::vector<State> states;
  for (State& s : g.states) {
    if (!needed[s.value] && s.next == kNoValue) continue;
    keep(s.value);
    s.value = map[s.value];
    states.push_back(std::move(s));
  }
  std::vector<Constant> constants;
  for (Constant& c : g.constants) {
    if (!needed[c.value]) continue;
    keep(c.value);
    constants.push_back({map[c.value], std::move(c.literal)});
  }
  std::vector<Node> nodes;
  std::vector<int32_t> origin(g.origins.size(), -1);
  std::vector<std::string> origins;
  for (Node& node : g.nodes) {
    if (!needed[node.outputs[0]]) continue;
    for (ValueId& v : node.inputs) v = v == kNoValue ? kNoValue : map[v];
    for (ValueId& v : node.outputs) {
      keep(v);
      v = map[v];
      values[v].producer = static_cast<NodeId>(nodes.size());
    }
    if (node.origin >= 0 && origin[node.origin] < 0) {
      origin[node.origin] = static_cast<int32_t>(origins.size());
      origins.push_back(std::move(g.origins[node.origin]));
    }
    if (node.origin >= 0) node.origin = origin[node.origin];
    nodes.push_back(std::move(node));
  }
  for (State& s : states) s.next = s.next == kNoValue ? kNoValue : map[s.next];
  for (GraphOutput& out : g.outputs) out.value = map[out.value];
  g.values = std::move(values);
  g.states = std::move(states);
  g.constants = std::move(constants);
  g.nodes = std::move(nodes);
  g.origins = std::move(origins);
}

// Trained, they would be no rotation of positions any more, and PyTorch never trains them.
void freeze_frequencies(const Graph& g, std::vector<bool>& live, std::vector<std::string>& warnings) {
  const std::vector<bool> frequencies = rotary_frequencies(g);
  for (size_t k = 0; k < g.states.size(); ++k) {
    const State& s = g.states[k];
    if (!frequencies[k] || s.kind != StateKind::kParameter || !live[s.value]) continue;
    live[s.value] = false;
    warnings.push_back(cat("initializer ", quote(s.name),
                           " is read by sines and cosines of positions alone: rotary frequencies, a buffer that is not "
                           "trained; trainable: ['*'] in train.yaml trains it"));
  }
}

}  // namespace

void finish_graph(Graph& g, const ImportOptions& options, const std::vector<ValueId>& untrained,
                  std::vector<std::string>& warnings) {
  std::vector<bool> live = differentiable_values(g), needed = needed_values(g);
  for (ValueId v : untrained) live[v] = false;
  if (options.trainable.empty()) freeze_frequencies(g, live, warnings);
  std::vector<std::string> unused, coarse;
  for (State& s : g.states) {
    if (!needed[s.value] && s.next == kNoValue && s.kind != StateKind::kStep) unused.push_back(s.name);
    if (s.kind != StateKind::kParameter) continue;
    if (live[s.value]) {
      const DType dtype = g.type(s.value).dtype;
      if (dtype == DType::kF16 || dtype == DType::kBF16) coarse.push_back(s.name);
      continue;
    }
    s.kind = StateKind::kFrozen;
    if (needed[s.value] && matches_any(options.trainable, s.name)) {
      warnings.push_back(
          cat("initializer ", quote(s.name),
              " is listed as trainable, but no graph output depends on it through differentiable operators"));
    }
  }
  if (!unused.empty()) warnings.push_back(cat("initializers that no graph output needs: ", quote_list(unused)));
  if (!coarse.empty()) {
    warnings.push_back(cat("trained initializers that the file holds in 16 bits: ", quote_list(coarse),
                           "; they stay so, each step rounds them, and one that changes a weight by less than its half "
                           "last digit (1/4096 of it in fp16, 1/512 in bf16) is lost; export the model in fp32, and "
                           "let precision: in train.yaml choose 16 bits, which keeps master weights in fp32"));
  }
  compact(g, needed);
}

}  // namespace partita
