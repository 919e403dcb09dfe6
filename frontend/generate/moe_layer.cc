// Choice j of token s goes to slot `position` of its expert: the count of tokens before it that made the same choice,
// after all tokens of earlier choices. What lies past the capacity is dropped. combine[s, e, c] is the gate of token s
// where it fills slot c of expert e.
#include "frontend/generate/moe_layer.h"

#include "frontend/generate/layers.h"

namespace partita {
namespace {

struct Capacity {
  std::string slots;   // int64 [c]: 0, 1, …
  std::string number;  // float scalar c
};

// ceil(batch * sequence * k / experts), in the graph where the batch is symbolic.
Capacity capacity(GraphWriter& g, const GptSpec& spec, const std::string& input_ids) {
  int64_t experts = spec.moe->experts, choices = spec.sequence * spec.moe->top_k;
  if (spec.batch != kBatchSymbol) {
    int64_t slots = (spec.batch * choices + experts - 1) / experts;
    return {positions(g, slots), g.number(static_cast<float>(slots))};
  }
  std::string batch = g.add_node("Squeeze", {g.add_node("Shape", {input_ids}, {{"start", 0}, {"end", 1}})});
  std::string total = g.add_node("Add", {g.add_node("Mul", {batch, g.integer(choices)}), g.integer(experts - 1)});
  std::string slots = g.add_node("Div", {total, g.integer(experts)});
  return {g.add_node("Range", {g.integer(0), slots, g.integer(1)}), g.cast(slots, Element::kFloat)};
}

// Float: 1 where `index` [s] equals an entry of `classes`.
std::string one_hot(GraphWriter& g, const std::string& index, const std::string& classes) {
  return g.cast(g.cast(g.add_node("Equal", {g.unsqueeze(index, 1), classes}), Element::kInt64), Element::kFloat);
}

std::string reduce(GraphWriter& g, const char* op, const std::string& x, int64_t axis, bool keep) {
  return g.add_node(op, {x, g.ints({axis})}, {{"keepdims", keep ? 1 : 0}, {"noop_with_empty_axes", 0}});
}

std::string einsum(GraphWriter& g, const char* equation, const std::vector<std::string>& inputs) {
  return g.add_node("Einsum", inputs, {{"equation", equation}});
}

// Dispatched tokens [e, c, d] through the experts' MLPs.
std::string experts(GraphWriter& g, const std::string& name, const std::string& x, const GptSpec& spec) {
  int64_t e = spec.moe->experts, d = spec.hidden, h = spec.moe->ffn;
  std::string up = einsum(g, "ecd,edh->ech", {x, g.weight(name + ".wi", {e, d, h})});
  if (spec.bias) up = g.add_node("Add", {up, g.weight(name + ".bi", {e, 1, h}, Fill::zeros())});
  if (spec.gated_mlp) {
    std::string gate = einsum(g, "ecd,edh->ech", {x, g.weight(name + ".wg", {e, d, h})});
    up = g.add_node("Mul", {silu(g, gate), up});
  } else {
    up = gelu_erf(g, up);
  }
  return einsum(g, "ech,ehd->ecd", {up, g.weight(name + ".wo", {e, h, d})});
}

}  // namespace

MoeOutput moe_layer(GraphWriter& g, const std::string& name, const std::string& x, const GptSpec& spec,
                    const std::string& input_ids) {
  int64_t k = spec.moe->top_k;
  Capacity slots = capacity(g, spec, input_ids);
  std::string tokens = g.reshape(x, {-1, spec.hidden});
  std::string probability = g.add_node(
      "Softmax", {g.add_node("MatMul", {tokens, g.weight(name + ".gate", {spec.hidden, spec.moe->experts})})},
      {{"axis", -1}});
  std::vector<std::string> top =
      g.add_nodes("TopK", {probability, g.ints({k})}, 2, {{"axis", -1}, {"largest", 1}, {"sorted", 1}});
  // With one choice the gate is its probability (Switch), else the router would get no gradient.
  std::string gates = k == 1 ? top[0] : g.add_node("Div", {top[0], reduce(g, "ReduceSum", top[0], 1, true)});
  std::string expert_ids = positions(g, spec.moe->experts), earlier, combine;
  std::vector<std::string> choices;
  for (int64_t j = 0; j < k && g.status().ok(); ++j) {
    choices.push_back(one_hot(g, g.add_node("Gather", {top[1], g.integer(j)}, {{"axis", 1}}), expert_ids));
  }
  for (int64_t j = 0; j < k && g.status().ok(); ++j) {
    const std::string& choice = choices[j];
    std::string count = g.add_node(
        "Sub", {g.add_node("CumSum", {choice, g.integer(0)}, {{"exclusive", 0}, {"reverse", 0}}), g.number(1)});
    if (j > 0) {
      std::string before = reduce(g, "ReduceSum", choices[j - 1], 0, true);
      earlier = j == 1 ? before : g.add_node("Add", {earlier, before});
      count = g.add_node("Add", {count, earlier});
    }
    std::string position = g.add_node("Mul", {count, choice});
    std::string kept =
        g.add_node("Mul", {choice, g.cast(g.add_node("Less", {position, slots.number}), Element::kFloat)});
    std::string slot = g.cast(reduce(g, "ReduceSum", g.add_node("Mul", {position, kept}), 1, false), Element::kInt64);
    std::string gate = g.add_node("Gather", {gates, g.integer(j)}, {{"axis", 1}});
    std::string part = einsum(g, "s,se,sc->sec", {gate, kept, one_hot(g, slot, slots.slots)});
    combine = j == 0 ? part : g.add_node("Add", {combine, part});
  }
  if (!g.status().ok()) return {};
  std::string dispatch = g.cast(g.add_node("Greater", {combine, g.number(0)}), Element::kFloat);
  std::string y = experts(g, name, einsum(g, "sec,sd->ecd", {dispatch, tokens}), spec);
  std::string share = g.add_node(
      "Mul", {reduce(g, "ReduceMean", probability, 0, false), reduce(g, "ReduceMean", choices[0], 0, false)});
  std::string balance =
      g.add_node("Mul", {reduce(g, "ReduceSum", share, 0, false), g.number(static_cast<float>(spec.moe->experts))});
  return {g.reshape(einsum(g, "sec,ecd->sd", {combine, y}), {-1, spec.sequence, spec.hidden}), balance};
}

}  // namespace partita
