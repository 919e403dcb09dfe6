#include "frontend/generate/bert.h"

#include <limits>

#include "base/cat.h"
#include "base/status.h"
#include "frontend/generate/layers.h"

namespace partita {
namespace {

constexpr double kEpsilon = 1e-12;

absl::Status complete(BertSpec& s) {
  PARTITA_RETURN_IF_ERROR(check_sizes({{"--layers", s.layers, kMaxLayers},
                                       {"--hidden", s.hidden, kMaxHidden},
                                       {"--heads", s.heads},
                                       {"--vocab", s.vocab},
                                       {"--seq", s.sequence}}));
  if (s.batch != kBatchSymbol) PARTITA_RETURN_IF_ERROR(check_sizes({{"--batch", s.batch}}));
  if (s.ffn == 0) s.ffn = 4 * s.hidden;
  PARTITA_RETURN_IF_ERROR(check_sizes({{"--ffn", s.ffn}}));
  PARTITA_RETURN_IF_ERROR(check_divides("--heads", s.heads, "--hidden", s.hidden));
  PARTITA_RETURN_IF_ERROR(check_product("batch x seq x ffn", {s.batch, s.sequence, s.ffn}));
  PARTITA_RETURN_IF_ERROR(check_product("batch x seq x vocab", {s.batch, s.sequence, s.vocab}));
  return check_product("batch x heads x seq x seq", {s.batch, s.heads, s.sequence, s.sequence});
}

std::string layer(GraphWriter& g, const BertSpec& s, const std::string& name, const std::string& x,
                  const std::string& mask) {
  int64_t size = s.hidden / s.heads;
  std::vector<std::string> qkv;
  for (const char* part : {"query", "key", "value"}) {
    qkv.push_back(split_heads(g, linear(g, cat(name, ".attention.self.", part), x, s.hidden, s.hidden), s.sequence,
                              s.heads, size));
  }
  std::string attended = merge_heads(g, attention(g, qkv[0], qkv[1], qkv[2], size, mask), s.sequence, s.hidden);
  std::string out = linear(g, name + ".attention.output.dense", attended, s.hidden, s.hidden);
  std::string y = layer_norm(g, name + ".attention.output.LayerNorm", g.add_node("Add", {out, x}), s.hidden, kEpsilon);
  std::string up = gelu_erf(g, linear(g, name + ".intermediate.dense", y, s.hidden, s.ffn));
  std::string down = linear(g, name + ".output.dense", up, s.ffn, s.hidden);
  return layer_norm(g, name + ".output.LayerNorm", g.add_node("Add", {down, y}), s.hidden, kEpsilon);
}

}  // namespace

absl::StatusOr<GraphWriter> generate_bert(BertSpec s) {
  PARTITA_RETURN_IF_ERROR(complete(s));
  GraphWriter g("bert");
  auto input = [&](const char* name) { return g.input(name, Element::kInt64, {s.batch, s.sequence}); };
  std::string ids = input("input_ids"), attended = input("attention_mask"), types = input("token_type_ids"),
              labels = input("labels");
  const std::string embeddings = "bert.embeddings.";
  std::string words = g.weight(embeddings + "word_embeddings.weight", {s.vocab, s.hidden});
  std::string x = g.add_node("Gather", {words, ids}, {{"axis", 0}});
  x = g.add_node("Add",
                 {x, g.add_node("Gather", {g.weight(embeddings + "token_type_embeddings.weight", {2, s.hidden}), types},
                                {{"axis", 0}})});
  std::string places = g.weight(embeddings + "position_embeddings.weight", {s.sequence, s.hidden});
  x = g.add_node("Add", {x, g.add_node("Gather", {places, g.unsqueeze(positions(g, s.sequence), 0)}, {{"axis", 0}})});
  x = layer_norm(g, embeddings + "LayerNorm", x, s.hidden, kEpsilon);
  std::string visible = g.add_node("Unsqueeze", {g.cast(attended, Element::kBool), g.ints({1, 2})});
  std::string mask = g.add_node("Where", {visible, g.number(0), g.number(std::numeric_limits<float>::lowest())});
  for (int64_t k = 0; k < s.layers && g.status().ok(); ++k) x = layer(g, s, cat("bert.encoder.layer.", k), x, mask);
  x = gelu_erf(g, linear(g, "cls.predictions.transform.dense", x, s.hidden, s.hidden));
  x = layer_norm(g, "cls.predictions.transform.LayerNorm", x, s.hidden, kEpsilon);
  std::string logits = linear_with(g, x, words, g.weight("cls.predictions.decoder.bias", {s.vocab}, Fill::zeros()));
  token_loss(g, logits, labels, s.vocab, "loss");
  g.output("loss", {});
  PARTITA_RETURN_IF_ERROR(g.status());
  return g;
}

}  // namespace partita
