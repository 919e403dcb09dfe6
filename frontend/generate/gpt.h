// Decoder-only transformers: GPT-2 to Llama in shape, dense or with a mixture of experts in every layer.
#pragma once

#include "frontend/generate/graph_writer.h"

namespace partita {

struct MoeSpec {
  int64_t experts = 8, top_k = 2;
  int64_t ffn = 0;  // of one expert; 0: that of the model
};

struct GptSpec {
  enum class Norm { kLayerNorm, kRmsNorm };
  enum class Positions { kLearned, kRotary, kNone };

  int64_t layers = 12, hidden = 768, heads = 12;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t ffn = 0;       // 0: 4 hidden, or with a gate 8/3 hidden, rounded up to a multiple of 256
  int64_t vocab = 50257, sequence = 1024, batch = kBatchSymbol;
  bool any_sequence = false;  // that dimension stays symbolic; `sequence`: rows of learned positions. Not with experts
  bool gated_mlp = false, bias = true, tied = true;  // bias: also of layer norms
  Norm norm = Norm::kLayerNorm;
  Positions positions = Positions::kLearned;
  std::optional<MoeSpec> moe;
};

// Inputs `input_ids` and `labels` [batch, sequence]; output `loss`: the labels are shifted inside, as Hugging Face
// does. With experts, tokens are dispatched in GShard's form (Lepikhin et al., 2020): each expert takes ceil(tokens k /
// experts) tokens, the rest is dropped, and 0.01 times the load-balancing loss is added.
absl::StatusOr<GraphWriter> generate_gpt(GptSpec spec);

}  // namespace partita
