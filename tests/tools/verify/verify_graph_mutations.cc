#include <algorithm>
#include <cmath>

#include "tests/tools/verify/verify_mutations.h"
#include "tools/mutation/graph_edits.h"
#include "tools/verify/layout/serial_values.h"

namespace partita {
namespace {

using verifier::Bundle;
using verifier::Movement;
using verifier::movement_of;

// A random element of `all` that `fits`, or -1.
template <typename T, typename Fits>
int pick(const std::vector<T>& all, std::mt19937& rng, Fits fits) {
  std::vector<int> found;
  for (size_t k = 0; k < all.size(); ++k) {
    if (fits(all[k])) found.push_back(static_cast<int>(k));
  }
  return found.empty() ? -1 : found[rng() % found.size()];
}

bool is_used(const Graph& g, ValueId v) {
  for (const Node& n : g.nodes) {
    if (std::find(n.inputs.begin(), n.inputs.end(), v) != n.inputs.end()) return true;
  }
  for (const State& s : g.states) {
    if (s.next == v) return true;
  }
  return std::any_of(g.outputs.begin(), g.outputs.end(), [&](const GraphOutput& o) { return o.value == v; });
}

// The same op again on its own first result, which everybody reads instead.
void repeat(Graph& g, NodeId n) {
  Node again = g.nodes[n];
  ValueId old = again.outputs[0], now = static_cast<ValueId>(g.values.size());
  g.values.push_back({g.type(old), n + 1, 0, "again"});
  for (Value& v : g.values) {
    if (v.producer > n && v.name != "again") ++v.producer;
  }
  again.inputs[0] = old;
  again.inputs.resize(std::min<size_t>(again.inputs.size(), again.op->communicates ? 1 : again.inputs.size()));
  again.outputs = {now};
  g.nodes.insert(g.nodes.begin() + n + 1, std::move(again));
  replace_uses(g, old, now, n + 1);
}

int pick_collective(const Graph& g, std::mt19937& rng, bool reduces) {
  // Messages between stages are held against the steps, not against the values.
  return pick(g.nodes, rng, [&](const Node& n) {
    return n.op->communicates && !n.inputs.empty() && !n.outputs.empty() && (!reduces || n.attrs.has("reduce"));
  });
}

bool dropped_reduce(Bundle& b, std::mt19937& rng) {
  int n = pick(b.programs[0].rank.nodes, rng, [](const Node& x) { return x.op->name == "all_reduce"; });
  if (n < 0) return false;
  size_t k = rng() % b.programs[0].rank.nodes[n].outputs.size();
  ValueId out = b.programs[0].rank.nodes[n].outputs[k];
  if (!is_used(b.programs[0].rank, out)) return false;
  replace_uses(b.programs[0].rank, out, b.programs[0].rank.nodes[n].inputs[k]);
  return true;
}

bool repeated_reduce(Bundle& b, std::mt19937& rng) {
  int n = pick(b.programs[0].rank.nodes, rng, [](const Node& x) { return x.op->name == "all_reduce"; });
  if (n < 0) return false;
  repeat(b.programs[0].rank, n);
  return true;
}

bool wrong_group(Bundle& b, std::mt19937& rng) {
  int n = pick_collective(b.programs[0].rank, rng, false);
  if (n < 0) return false;
  Attrs& attrs = b.programs[0].rank.nodes[n].attrs;
  std::vector<int64_t> axes = attrs.ints("axes");
  if (axes.size() > 1) {
    int64_t gone = axes.back();
    axes.pop_back();
    attrs.set("parts", attrs.i("parts") / b.programs[0].program.mesh[gone].size);
  } else {
    int64_t other = axes[0] + 1 < static_cast<int64_t>(b.programs[0].program.mesh.size()) ? axes[0] + 1 : axes[0] - 1;
    if (other < 0) return false;
    axes[0] = other;
    attrs.set("parts", b.programs[0].program.mesh[other].size);
  }
  attrs.set("axes", axes);
  return true;
}

bool wrong_reduction(Bundle& b, std::mt19937& rng) {
  int n = pick_collective(b.programs[0].rank, rng, true);
  if (n < 0) return false;
  Attrs& attrs = b.programs[0].rank.nodes[n].attrs;
  attrs.set("reduce", std::string(attrs.s("reduce") == "sum" ? "max" : "sum"));
  return true;
}

bool wrong_scale(Bundle& b, std::mt19937& rng) {
  int c = pick(b.programs[0].rank.constants, rng, [&](const Constant& x) {
    return is_float(x.literal.type.dtype) && elements(x.literal.type.shape) == 1 &&
           is_used(b.programs[0].rank, x.value);
  });
  if (c < 0) return false;
  Tensor t = to_tensor(b.programs[0].rank.constants[c].literal);
  t.f[0] = t.f[0] == 0 || !std::isfinite(t.f[0]) ? 0.25 : t.f[0] * 1.37;
  b.programs[0].rank.constants[c].literal = to_literal(t);
  return true;
}

bool swapped_operands(Bundle& b, std::mt19937& rng) {
  int n = pick(b.programs[0].rank.nodes, rng, [](const Node& x) {
    bool ordered = x.op->name == "sub" || x.op->name == "div" || x.op->name == "matmul";
    return ordered && x.inputs[0] != x.inputs[1];
  });
  if (n < 0) return false;
  std::swap(b.programs[0].rank.nodes[n].inputs[0], b.programs[0].rank.nodes[n].inputs[1]);
  return true;
}

bool missing_layer(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  int n = pick(g.nodes, rng, [&](const Node& x) {
    return movement_of(*x.op) == Movement::kNone && !x.inputs.empty() && x.inputs[0] != kNoValue &&
           g.type(x.inputs[0]) == g.type(x.outputs[0]) && is_used(g, x.outputs[0]) && x.op->name != "cast";
  });
  if (n < 0) return false;
  replace_uses(g, g.nodes[n].outputs[0], g.nodes[n].inputs[0]);
  return true;
}

// What should count for nothing (padding, masked scores) counts.
bool ignored_mask(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  int n = pick(g.nodes, rng, [&](const Node& x) {
    return x.op->name == "select" && g.type(x.inputs[1]) == g.type(x.outputs[0]) && is_used(g, x.outputs[0]);
  });
  if (n < 0) return false;
  replace_uses(g, g.nodes[n].outputs[0], g.nodes[n].inputs[1]);
  return true;
}

bool double_bias(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  int n = pick(g.nodes, rng, [&](const Node& x) {
    return x.op->name == "add" && g.type(x.inputs[0]) == g.type(x.outputs[0]) && is_used(g, x.outputs[0]) &&
           is_float(g.type(x.outputs[0]).dtype);
  });
  if (n < 0) return false;
  repeat(g, n);
  return true;
}

bool shifted_box(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  int n = pick(g.nodes, rng, [&](const Node& x) { return x.op->name == "slice" && is_used(g, x.outputs[0]); });
  if (n < 0) return false;
  std::vector<int64_t> starts = g.nodes[n].attrs.ints("starts"), limits = g.nodes[n].attrs.ints("limits");
  const Shape& from = g.type(g.nodes[n].inputs[0]).shape;
  for (size_t d = 0; d < starts.size(); ++d) {
    int by = limits[d] < from[d] ? 1 : starts[d] > 0 ? -1 : 0;
    if (by == 0) continue;
    starts[d] += by;
    limits[d] += by;
    g.nodes[n].attrs.set("starts", starts);
    g.nodes[n].attrs.set("limits", limits);
    return true;
  }
  return false;
}

bool another_ranks_box(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  int n = pick(g.nodes, rng, [](const Node& x) { return movement_of(*x.op) == Movement::kSlice; });
  if (n < 0) return false;
  for (const GraphInput& in : g.inputs) {
    bool other = in.kind == InputKind::kCoordinate && in.value != g.nodes[n].inputs[1];
    if (!other) continue;
    g.nodes[n].inputs[1] = in.value;
    return true;
  }
  for (const Constant& c : g.constants) {
    if (c.literal.type != TensorType{DType::kI64, {}}) continue;
    g.nodes[n].inputs[1] = c.value;
    return true;
  }
  return false;
}

bool stale_state(Bundle& b, std::mt19937& rng) {
  int s = pick(b.programs[0].rank.states, rng, [](const State& x) { return x.next != kNoValue && x.next != x.value; });
  if (s < 0) return false;
  b.programs[0].rank.states[s].next = b.programs[0].rank.states[s].value;
  return true;
}

bool swapped_states(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  auto changes = [](const State& x) { return x.next != kNoValue && x.next != x.value; };
  int s = pick(g.states, rng, changes);
  if (s < 0) return false;
  int t = pick(g.states, rng, [&](const State& x) {
    return changes(x) && x.next != g.states[s].next && g.type(x.value) == g.type(g.states[s].value);
  });
  if (t < 0) return false;
  std::swap(g.states[s].next, g.states[t].next);
  return true;
}

bool wrong_output(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  GraphOutput& o = g.outputs[rng() % g.outputs.size()];
  int n = pick(g.nodes, rng, [&](const Node& x) {
    return movement_of(*x.op) == Movement::kNone && x.outputs[0] != o.value && g.type(x.outputs[0]) == g.type(o.value);
  });
  if (n < 0) return false;
  o.value = g.nodes[n].outputs[0];
  return true;
}

bool wrong_attribute(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  int n = pick(g.nodes, rng, [](const Node& x) {
    return movement_of(*x.op) == Movement::kNone &&
           std::any_of(x.attrs.items().begin(), x.attrs.items().end(),
                       [](const auto& a) { return std::holds_alternative<double>(a.second); });
  });
  if (n < 0) return false;
  for (const auto& [name, value] : g.nodes[n].attrs.items()) {
    if (!std::holds_alternative<double>(value)) continue;
    g.nodes[n].attrs.set(std::string(name), std::get<double>(value) * 1.01 + 1e-3);
    break;
  }
  return true;
}

bool wrong_type(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  int n = pick(g.nodes, rng, [&](const Node& x) {
    return movement_of(*x.op) == Movement::kNone && g.type(x.outputs[0]).dtype == DType::kF32;
  });
  if (n < 0) return false;
  g.values[g.nodes[n].outputs[0]].type.dtype = DType::kF64;
  return true;
}

// A rank takes another part of the samples, or of a stored state, than the graph was made for.
bool wrong_placement(Bundle& b, std::mt19937& rng) {
  std::vector<runtime::Placement*> split;
  for (auto& in : b.programs[0].program.inputs) split.push_back(&in.placement);
  for (auto& s : b.programs[0].program.states) split.push_back(&s.placement);
  std::erase_if(split, [](const runtime::Placement* p) {
    return std::all_of(p->axes.begin(), p->axes.end(), [](const auto& axes) { return axes.empty(); });
  });
  if (split.empty()) return false;
  runtime::Placement& p = *split[rng() % split.size()];
  for (auto& axes : p.axes) {
    if (axes.empty()) continue;
    if (rng() % 2 == 0) {
      axes[0].stride = axes[0].stride == 1 ? 2 : axes[0].stride / 2;
    } else {
      axes[0].axis = (axes[0].axis + 1) % static_cast<int32_t>(b.programs[0].program.mesh.size());
      if (b.programs[0].program.mesh.size() == 1) axes.clear();
    }
    return true;
  }
  return false;
}

// Two messages to other stages, of one type, are taken for each other.
bool swapped_messages(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  auto sends = [](const Node& x) { return x.op->name == "send"; };
  int n = pick(g.nodes, rng, sends);
  if (n < 0) return false;
  ValueId v = g.nodes[n].inputs[0];
  int m = pick(g.nodes, rng,
               [&](const Node& x) { return sends(x) && x.inputs[0] != v && g.type(x.inputs[0]) == g.type(v); });
  if (m < 0) return false;
  std::swap(g.nodes[n].inputs, g.nodes[m].inputs);
  return true;
}

// What another stage has sent is left out of a sum, or out of a layer.
bool ignored_message(Bundle& b, std::mt19937& rng) {
  Graph& g = b.programs[0].rank;
  int n = pick(g.nodes, rng, [&](const Node& x) {
    const Node* term = x.inputs.size() == 2 ? g.producer(x.inputs[1]) : nullptr;
    return x.op->name == "add" && term != nullptr && term->op->name == "recv" && is_used(g, x.outputs[0]);
  });
  if (n < 0) return false;
  replace_uses(g, g.nodes[n].outputs[0], g.nodes[n].inputs[0]);
  return true;
}

bool wrong_sample_count(Bundle& b, std::mt19937& rng) {
  b.programs[0].program.samples_per_step += 1 + static_cast<int64_t>(rng() % 3);
  return true;
}

constexpr Mutation kMutations[] = {
    {"dropped reduce", dropped_reduce},
    {"repeated reduce", repeated_reduce},
    {"wrong group", wrong_group},
    {"wrong reduction", wrong_reduction},
    {"wrong scale", wrong_scale},
    {"swapped operands", swapped_operands},
    {"missing layer", missing_layer},
    {"ignored mask", ignored_mask},
    {"double bias", double_bias},
    {"shifted box", shifted_box},
    {"another rank's box", another_ranks_box},
    {"stale state", stale_state},
    {"swapped states", swapped_states},
    {"wrong output", wrong_output},
    {"wrong attribute", wrong_attribute},
    {"wrong type", wrong_type},
    {"wrong placement", wrong_placement},
    {"swapped messages", swapped_messages},
    {"ignored message", ignored_message},
    {"wrong sample count", wrong_sample_count},
};

}  // namespace

std::span<const Mutation> graph_mutations() { return kMutations; }

}  // namespace partita
