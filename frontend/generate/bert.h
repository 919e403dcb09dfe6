#pragma once

#include "frontend/generate/graph_writer.h"

namespace partita {

struct BertSpec {
  int64_t layers = 12, hidden = 768, heads = 12;
  int64_t ffn = 0;  // 0: 4 hidden
  int64_t vocab = 30522, sequence = 512, batch = kBatchSymbol;
};

// Hugging Face's BertForMaskedLM (post-norm, tied decoder): inputs `input_ids`, `attention_mask`, `token_type_ids` and
// `labels` [batch, sequence] (-100: not masked), output `loss`.
absl::StatusOr<GraphWriter> generate_bert(BertSpec spec);

}  // namespace partita
