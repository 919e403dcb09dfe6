#include "frontend/generate/layers.h"

#include <cmath>
#include <limits>

namespace partita {
namespace {

// The first two sizes of what [b, s, …] is reshaped to; 0 keeps what there is.
std::vector<int64_t> batch_and_sequence(int64_t sequence, std::vector<int64_t> rest) {
  const bool open = sequence == kSequenceSymbol;
  rest.insert(rest.begin(), {open ? 0 : -1, open ? 0 : sequence});
  return rest;
}

}  // namespace

std::string linear_with(GraphWriter& g, const std::string& x, const std::string& weight, const std::string& bias) {
  std::string y = g.add_node("MatMul", {x, g.transpose(weight, {1, 0})});
  return bias.empty() ? y : g.add_node("Add", {y, bias});
}

std::string linear(GraphWriter& g, const std::string& name, const std::string& x, int64_t in, int64_t out, bool bias) {
  std::string weight = g.weight(name + ".weight", {out, in});
  return linear_with(g, x, weight, bias ? g.weight(name + ".bias", {out}, Fill::zeros()) : "");
}

std::string dense(GraphWriter& g, const std::string& name, const std::string& x, int64_t in, int64_t out,
                  double deviation, const std::string& output) {
  std::string weight = g.weight(name + ".weight", {out, in}, Fill::normal(deviation)),
              bias = g.weight(name + ".bias", {out}, Fill::zeros());
  return g.add_node("Gemm", {x, weight, bias}, {{"beta", 1.0}, {"transB", 1}, {"alpha", 1.0}, {"transA", 0}}, output);
}

std::string layer_norm(GraphWriter& g, const std::string& name, const std::string& x, int64_t size, double epsilon,
                       bool bias) {
  std::vector<std::string> inputs = {x, g.weight(name + ".weight", {size}, Fill::ones())};
  if (bias) inputs.push_back(g.weight(name + ".bias", {size}, Fill::zeros()));
  return g.add_node("LayerNormalization", inputs, {{"axis", -1}, {"epsilon", epsilon}, {"stash_type", 1}});
}

std::string rms_norm(GraphWriter& g, const std::string& name, const std::string& x, int64_t size, double epsilon) {
  std::string scale = g.weight(name + ".weight", {size}, Fill::ones());
  std::string square = g.add_node("Pow", {x, g.number(2)});
  std::string mean = g.add_node("ReduceMean", {square, g.ints({-1})}, {{"keepdims", 1}, {"noop_with_empty_axes", 0}});
  std::string root = g.add_node("Sqrt", {g.add_node("Add", {mean, g.number(static_cast<float>(epsilon))})});
  return g.add_node("Mul", {scale, g.add_node("Mul", {x, g.add_node("Reciprocal", {root})})});
}

std::string gelu_erf(GraphWriter& g, const std::string& x) {
  std::string erf = g.add_node("Erf", {g.add_node("Div", {x, g.number(static_cast<float>(std::sqrt(2.0)))})});
  return g.add_node("Mul", {g.number(0.5f), g.add_node("Mul", {x, g.add_node("Add", {erf, g.number(1)})})});
}

std::string gelu_tanh(GraphWriter& g, const std::string& x) {
  std::string half = g.add_node("Mul", {x, g.number(0.5f)});
  std::string cube = g.add_node("Mul", {g.add_node("Pow", {x, g.number(3)}), g.number(0.044715f)});
  std::string inner =
      g.add_node("Mul", {g.add_node("Add", {x, cube}), g.number(static_cast<float>(std::sqrt(2 / M_PI)))});
  return g.add_node("Mul", {half, g.add_node("Add", {g.add_node("Tanh", {inner}), g.number(1)})});
}

std::string silu(GraphWriter& g, const std::string& x) { return g.add_node("Mul", {x, g.add_node("Sigmoid", {x})}); }

std::string split_heads(GraphWriter& g, const std::string& x, int64_t sequence, int64_t heads, int64_t size) {
  return g.transpose(g.reshape(x, batch_and_sequence(sequence, {heads, size})), {0, 2, 1, 3});
}

std::string merge_heads(GraphWriter& g, const std::string& x, int64_t sequence, int64_t hidden) {
  return g.reshape(g.transpose(x, {0, 2, 1, 3}), batch_and_sequence(sequence, {hidden}));
}

std::vector<std::string> split_packed(GraphWriter& g, const std::string& x, int64_t sequence, int64_t heads,
                                      int64_t size) {
  std::string parts = g.transpose(g.reshape(x, batch_and_sequence(sequence, {3, heads, size})), {2, 0, 3, 1, 4});
  std::vector<std::string> out;
  for (int64_t k = 0; k < 3; ++k) out.push_back(g.add_node("Gather", {parts, g.integer(k)}, {{"axis", 0}}));
  return out;
}

std::string attention(GraphWriter& g, const std::string& query, const std::string& key, const std::string& value,
                      int64_t size, const std::string& mask) {
  // The exporter scales both operands by the root, for the sake of half precision.
  std::string scale = g.number(static_cast<float>(1 / std::sqrt(std::sqrt(static_cast<double>(size)))));
  std::string keys = g.add_node("Mul", {g.transpose(key, {0, 1, 3, 2}), scale});
  std::string scores = g.add_node("MatMul", {g.add_node("Mul", {query, scale}), keys});
  if (!mask.empty()) scores = g.add_node("Add", {scores, mask});
  return g.add_node("MatMul", {g.add_node("Softmax", {scores}, {{"axis", -1}}), value});
}

std::string positions(GraphWriter& g, int64_t size, const std::string& ids) {
  const std::string count = size == kSequenceSymbol
                                ? g.add_node("Squeeze", {g.add_node("Shape", {ids}, {{"start", 1}, {"end", 2}})})
                                : g.integer(size);
  return g.add_node("Range", {g.integer(0), count, g.integer(1)});
}

std::string causal_mask(GraphWriter& g, const std::string& positions) {
  std::string attended = g.add_node("LessOrEqual", {g.unsqueeze(positions, 0), g.unsqueeze(positions, 1)});
  return g.add_node("Where", {attended, g.number(0), g.number(-std::numeric_limits<float>::infinity())});
}

std::string token_loss(GraphWriter& g, const std::string& logits, const std::string& labels, int64_t classes,
                       const std::string& output) {
  return g.add_node("SoftmaxCrossEntropyLoss", {g.reshape(logits, {-1, classes}), g.reshape(labels, {-1})},
                    {{"ignore_index", -100}, {"reduction", "mean"}}, output);
}

std::string next_tokens(GraphWriter& g, const std::string& labels, int64_t sequence) {
  return g.slice(g.add_node("Pad", {labels, g.ints({0, 0, 0, 1}), g.integer(-100)}, {{"mode", "constant"}}), 1,
                 sequence == kSequenceSymbol ? std::numeric_limits<int64_t>::max() : sequence + 1, 1);
}

}  // namespace partita
