#include "frontend/generate/vit.h"

#include <cmath>

#include "base/cat.h"
#include "base/status.h"
#include "frontend/generate/layers.h"

namespace partita {
namespace {

constexpr double kEpsilon = 1e-6;

absl::Status check(const VitSpec& s) {
  PARTITA_RETURN_IF_ERROR(check_sizes({{"--layers", s.layers, kMaxLayers},
                                       {"--hidden", s.hidden, kMaxHidden},
                                       {"--heads", s.heads},
                                       {"--patch", s.patch},
                                       {"--image", s.image},
                                       {"--classes", s.classes}}));
  if (s.batch != kBatchSymbol) PARTITA_RETURN_IF_ERROR(check_sizes({{"--batch", s.batch}}));
  PARTITA_RETURN_IF_ERROR(check_divides("--heads", s.heads, "--hidden", s.hidden));
  PARTITA_RETURN_IF_ERROR(check_divides("--patch", s.patch, "--image", s.image));
  int64_t side = s.image / s.patch;
  PARTITA_RETURN_IF_ERROR(check_product("batch x 3 x image x image", {s.batch, 3, s.image, s.image}));
  PARTITA_RETURN_IF_ERROR(check_product("batch x patches x 4 hidden", {s.batch, side, side, 4, s.hidden}));
  PARTITA_RETURN_IF_ERROR(
      check_product("batch x heads x patches x patches", {s.batch, s.heads, side + 1, side + 1, side + 1, side + 1}));
  return check_product("batch x classes", {s.batch, s.classes});
}

// The class token for every sample: [1, 1, hidden] -> [batch, 1, hidden].
std::string class_tokens(GraphWriter& g, const VitSpec& s, const std::string& x) {
  std::string token = g.weight("class_token", {1, 1, s.hidden}, Fill::zeros());
  if (s.batch != kBatchSymbol) return g.add_node("Expand", {token, g.ints({s.batch, 1, 1})});
  std::string batch = g.add_node("Shape", {x}, {{"start", 0}, {"end", 1}});
  return g.add_node("Expand", {token, g.add_node("Concat", {batch, g.ints({1, 1})}, {{"axis", 0}})});
}

std::string layer(GraphWriter& g, const VitSpec& s, const std::string& name, const std::string& x, int64_t sequence) {
  int64_t size = s.hidden / s.heads;
  std::string normed = layer_norm(g, name + ".ln_1", x, s.hidden, kEpsilon);
  std::string weight = g.weight(name + ".self_attention.in_proj_weight", {3 * s.hidden, s.hidden});
  std::string packed =
      linear_with(g, normed, weight, g.weight(name + ".self_attention.in_proj_bias", {3 * s.hidden}, Fill::zeros()));
  std::vector<std::string> qkv = split_packed(g, packed, sequence, s.heads, size);
  std::string attended = merge_heads(g, attention(g, qkv[0], qkv[1], qkv[2], size, ""), sequence, s.hidden);
  std::string y = g.add_node("Add", {linear(g, name + ".self_attention.out_proj", attended, s.hidden, s.hidden), x});
  std::string up = gelu_erf(
      g, linear(g, name + ".mlp.0", layer_norm(g, name + ".ln_2", y, s.hidden, kEpsilon), s.hidden, 4 * s.hidden));
  return g.add_node("Add", {y, linear(g, name + ".mlp.3", up, 4 * s.hidden, s.hidden)});
}

}  // namespace

absl::StatusOr<GraphWriter> generate_vit(const VitSpec& s) {
  PARTITA_RETURN_IF_ERROR(check(s));
  GraphWriter g("vit");
  int64_t side = s.image / s.patch, sequence = side * side + 1;
  std::string image = g.input("x", Element::kFloat, {s.batch, 3, s.image, s.image});
  double deviation = std::sqrt(1.0 / (3.0 * static_cast<double>(s.patch) * static_cast<double>(s.patch)));
  std::string weight = g.weight("conv_proj.weight", {s.hidden, 3, s.patch, s.patch}, Fill::normal(deviation)),
              bias = g.weight("conv_proj.bias", {s.hidden}, Fill::zeros());
  std::vector<int64_t> kernel = {s.patch, s.patch};
  std::string patches = g.add_node("Conv", {image, weight, bias},
                                   {{"auto_pad", "NOTSET"},
                                    {"dilations", std::vector<int64_t>{1, 1}},
                                    {"group", 1},
                                    {"kernel_shape", kernel},
                                    {"pads", std::vector<int64_t>{0, 0, 0, 0}},
                                    {"strides", kernel}});
  std::string x = g.transpose(g.reshape(patches, {-1, s.hidden, side * side}), {0, 2, 1});
  x = g.add_node("Concat", {class_tokens(g, s, image), x}, {{"axis", 1}});
  x = g.add_node("Add", {x, g.weight("encoder.pos_embedding", {1, sequence, s.hidden})});
  for (int64_t k = 0; k < s.layers && g.status().ok(); ++k)
    x = layer(g, s, cat("encoder.layers.encoder_layer_", k), x, sequence);
  x = layer_norm(g, "encoder.ln", x, s.hidden, kEpsilon);
  std::string token = g.add_node("Gather", {x, g.integer(0)}, {{"axis", 1}});
  dense(g, "heads.head", token, s.hidden, s.classes, 0.02, "logits");
  g.output("logits", {s.batch, s.classes});
  PARTITA_RETURN_IF_ERROR(g.status());
  return g;
}

}  // namespace partita
