#include "frontend/generate/gpt.h"

#include <cmath>

#include "base/cat.h"
#include "base/status.h"
#include "frontend/generate/layers.h"
#include "frontend/generate/moe_layer.h"

namespace partita {
namespace {

constexpr double kEpsilon = 1e-5, kRotaryBase = 10000, kBalance = 0.01;
constexpr int64_t kMaxTopK = 64;

absl::Status complete(GptSpec& s) {
  PARTITA_RETURN_IF_ERROR(check_sizes({{"--layers", s.layers, kMaxLayers},
                                       {"--hidden", s.hidden, kMaxHidden},
                                       {"--heads", s.heads},
                                       {"--vocab", s.vocab},
                                       {"--seq", s.sequence}}));
  if (s.batch != kBatchSymbol) PARTITA_RETURN_IF_ERROR(check_sizes({{"--batch", s.batch}}));
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  if (s.ffn == 0) s.ffn = s.gated_mlp ? (s.hidden * 8 / 3 + 255) / 256 * 256 : 4 * s.hidden;
  PARTITA_RETURN_IF_ERROR(check_sizes({{"--kv-heads", s.kv_heads}, {"--ffn", s.ffn}}));
  PARTITA_RETURN_IF_ERROR(check_divides("--heads", s.heads, "--hidden", s.hidden));
  PARTITA_RETURN_IF_ERROR(check_divides("--kv-heads", s.kv_heads, "--heads", s.heads));
  if (s.positions == GptSpec::Positions::kRotary && s.hidden / s.heads % 2 != 0) {
    return absl::InvalidArgumentError(cat("--positions rotary needs heads of an even size, found --hidden ", s.hidden,
                                          " / --heads ", s.heads, " = ", s.hidden / s.heads));
  }
  PARTITA_RETURN_IF_ERROR(check_product("batch x seq x ffn", {s.batch, s.sequence, s.ffn}));
  PARTITA_RETURN_IF_ERROR(check_product("batch x seq x vocab", {s.batch, s.sequence, s.vocab}));
  PARTITA_RETURN_IF_ERROR(check_product("batch x heads x seq x seq", {s.batch, s.heads, s.sequence, s.sequence}));
  if (!s.moe) return absl::OkStatus();
  if (s.moe->ffn == 0) s.moe->ffn = s.ffn;
  PARTITA_RETURN_IF_ERROR(
      check_sizes({{"--experts", s.moe->experts}, {"--moe-ffn", s.moe->ffn}, {"--top-k", s.moe->top_k, kMaxTopK}}));
  if (s.moe->top_k > s.moe->experts)
    return absl::InvalidArgumentError(cat("--top-k ", s.moe->top_k, " is more than --experts ", s.moe->experts));
  int64_t largest = std::max(s.moe->ffn, s.moe->experts);
  return check_product("batch x seq x top-k x the larger of experts and moe-ffn",
                       {s.batch, s.sequence, s.moe->top_k, largest});
}

struct Rotary {
  std::string cos, sin;  // [s, size of a head]
};

Rotary rotary_tables(GraphWriter& g, const std::string& positions, int64_t size) {
  std::vector<float> frequencies;
  for (int64_t k = 0; k < size; k += 2)
    frequencies.push_back(
        static_cast<float>(std::pow(kRotaryBase, -static_cast<double>(k) / static_cast<double>(size))));
  std::string position = g.unsqueeze(g.cast(positions, Element::kFloat), 1);
  std::string angle = g.add_node("Mul", {position, g.numbers(frequencies)});
  std::string both = g.add_node("Concat", {angle, angle}, {{"axis", -1}});
  return {g.add_node("Cos", {both}), g.add_node("Sin", {both})};
}

// x [b, heads, s, size].
std::string rotate(GraphWriter& g, const std::string& x, const Rotary& tables, int64_t size) {
  std::string low = g.slice(x, 0, size / 2, 3), high = g.slice(x, size / 2, size, 3);
  std::string turned = g.add_node("Concat", {g.add_node("Neg", {high}), low}, {{"axis", -1}});
  std::string straight = g.add_node("Mul", {x, tables.cos});
  return g.add_node("Add", {straight, g.add_node("Mul", {turned, tables.sin})});
}

class Gpt {
 public:
  explicit Gpt(const GptSpec& spec)
      : s_(spec),
        size_(spec.hidden / spec.heads),
        sequence_(spec.any_sequence ? kSequenceSymbol : spec.sequence),
        g_(spec.moe ? "moe" : "gpt") {}

  absl::StatusOr<GraphWriter> run() && {
    std::string ids = g_.input("input_ids", Element::kInt64, {s_.batch, sequence_}),
                labels = g_.input("labels", Element::kInt64, {s_.batch, sequence_});
    std::string table = g_.weight("transformer.wte.weight", {s_.vocab, s_.hidden});
    std::string x = g_.add_node("Gather", {table, ids}, {{"axis", 0}});
    if (s_.positions == GptSpec::Positions::kLearned) {
      std::string learned = g_.weight("transformer.wpe.weight", {s_.sequence, s_.hidden});
      x = g_.add_node(
          "Add", {x, g_.add_node("Gather", {learned, g_.unsqueeze(positions(g_, sequence_, ids), 0)}, {{"axis", 0}})});
    }
    if (s_.positions == GptSpec::Positions::kRotary) rotary_ = rotary_tables(g_, positions(g_, sequence_, ids), size_);
    mask_ = causal_mask(g_, positions(g_, sequence_, ids));
    std::string balance;
    for (int64_t k = 0; k < s_.layers && g_.status().ok(); ++k) {
      std::string name = cat("transformer.h.", k);
      x = g_.add_node("Add", {x, attend(name + ".attn", norm(name + ".ln_1", x))});
      std::string normed = norm(name + ".ln_2", x), y;
      if (s_.moe) {
        MoeOutput moe = moe_layer(g_, name + ".moe", normed, s_, ids);
        balance = balance.empty() ? moe.balance : g_.add_node("Add", {balance, moe.balance});
        y = moe.y;
      } else {
        y = mlp(name + ".mlp", normed);
      }
      x = g_.add_node("Add", {x, y});
    }
    std::string head = norm("transformer.ln_f", x);
    std::string logits =
        linear_with(g_, head, s_.tied ? table : g_.weight("lm_head.weight", {s_.vocab, s_.hidden}), "");
    std::string targets = next_tokens(g_, labels, sequence_);
    if (s_.moe) {
      std::string loss = token_loss(g_, logits, targets, s_.vocab, "");
      g_.add_node("Add", {loss, g_.add_node("Mul", {balance, g_.number(static_cast<float>(kBalance))})}, {}, "loss");
    } else {
      token_loss(g_, logits, targets, s_.vocab, "loss");
    }
    g_.output("loss", {});
    PARTITA_RETURN_IF_ERROR(g_.status());
    return std::move(g_);
  }

 private:
  std::string norm(const std::string& name, const std::string& x) {
    return s_.norm == GptSpec::Norm::kRmsNorm ? rms_norm(g_, name, x, s_.hidden, kEpsilon)
                                              : layer_norm(g_, name, x, s_.hidden, kEpsilon, s_.bias);
  }

  // [b, kv, s, size] -> [b, heads, s, size], each repeated for the queries that share it.
  std::string repeat(const std::string& x) {
    std::string wide = g_.add_node("Expand", {g_.unsqueeze(x, 2), g_.ints({1, 1, s_.heads / s_.kv_heads, 1, 1})});
    if (sequence_ == kSequenceSymbol) return g_.reshape(wide, {0, s_.heads, -1, size_});
    return g_.reshape(wide, {-1, s_.heads, s_.sequence, size_});
  }

  std::string attend(const std::string& name, const std::string& x) {
    std::vector<std::string> qkv;
    if (s_.kv_heads == s_.heads) {
      qkv =
          split_packed(g_, linear(g_, name + ".qkv", x, s_.hidden, 3 * s_.hidden, s_.bias), sequence_, s_.heads, size_);
    } else {
      qkv.push_back(
          split_heads(g_, linear(g_, name + ".q_proj", x, s_.hidden, s_.hidden, s_.bias), sequence_, s_.heads, size_));
      for (const char* part : {".k_proj", ".v_proj"}) {
        qkv.push_back(split_heads(g_, linear(g_, name + part, x, s_.hidden, s_.kv_heads * size_, s_.bias), sequence_,
                                  s_.kv_heads, size_));
      }
    }
    if (s_.positions == GptSpec::Positions::kRotary) {
      for (int k : {0, 1}) qkv[k] = rotate(g_, qkv[k], rotary_, size_);
    }
    if (s_.kv_heads != s_.heads) {
      for (int k : {1, 2}) qkv[k] = repeat(qkv[k]);
    }
    std::string y = merge_heads(g_, attention(g_, qkv[0], qkv[1], qkv[2], size_, mask_), sequence_, s_.hidden);
    return linear(g_, name + ".proj", y, s_.hidden, s_.hidden, s_.bias);
  }

  std::string mlp(const std::string& name, const std::string& x) {
    std::string up;
    if (s_.gated_mlp) {
      std::string gate = silu(g_, linear(g_, name + ".gate", x, s_.hidden, s_.ffn, s_.bias));
      up = g_.add_node("Mul", {gate, linear(g_, name + ".up", x, s_.hidden, s_.ffn, s_.bias)});
    } else {
      up = gelu_tanh(g_, linear(g_, name + ".up", x, s_.hidden, s_.ffn, s_.bias));
    }
    return linear(g_, name + ".down", up, s_.ffn, s_.hidden, s_.bias);
  }

  const GptSpec& s_;
  int64_t size_;      // of a head
  int64_t sequence_;  // or kSequenceSymbol
  GraphWriter g_;
  Rotary rotary_;
  std::string mask_;
};

}  // namespace

absl::StatusOr<GraphWriter> generate_gpt(GptSpec spec) {
  PARTITA_RETURN_IF_ERROR(complete(spec));
  return Gpt(spec).run();
}

}  // namespace partita
