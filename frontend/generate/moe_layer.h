// A mixture-of-experts layer in the static-capacity form of GShard.
#pragma once

#include <string>

#include "frontend/generate/gpt.h"

namespace partita {

struct MoeOutput {
  std::string y;        // [batch, sequence, hidden]
  std::string balance;  // scalar: experts * sum of (mean probability * mean share of first choices)
};

// `input_ids` gives the batch where it is symbolic.
MoeOutput moe_layer(GraphWriter& g, const std::string& name, const std::string& x, const GptSpec& spec,
                    const std::string& input_ids);

}  // namespace partita
