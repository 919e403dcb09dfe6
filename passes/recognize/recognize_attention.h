// Attention that exporters spell out becomes one attention op; masks and repeated key heads of attention ops are
// simplified.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// softmax(scale q k^T + mask) v in rank 4 [b,h,s,d] or rank 3 [n,s,d]: scales on q, k or the scores; keys transposed by
// an op or a flag; masks added, or selected with -inf or a low number; select(isnan(p), 0, p). Only where nothing else
// reads the values between.
//  - Keys and values repeated for grouped queries (unsqueeze, expand, reshape) are used as they were before.
//  - A mask that is causality is dropped and said by the attribute, where no other mask is there to make the difference
//    between "hidden" and "very low" matter.
//  - Conditions that always hold are dropped, so that a padding mask keeps its small shape.
// Rows without keys: -inf masks give 0 as attention has it (the spelling without a NaN guard gives NaN); low numbers
// are kept as an additive mask, so the value stays. Not recognised: scores selected with a number between -1e30 and
// -1e4 under a mask that is not causality alone, which no additive mask says exactly.
absl::StatusOr<Graph> recognize_attention(const Graph& graph, const PassContext& context);

}  // namespace partita
