// What a step of attention on views computes (codegen/prepare/attention_views.h), in wide arithmetic.
#pragma once

#include <span>
#include <vector>

#include "ir/graph/evaluate.h"
#include "runtime/program/program.h"

namespace partita {

// An absent input is a null pointer.
std::vector<Tensor> evaluate_attention(const runtime::Step& step, std::span<const Tensor* const> inputs);

}  // namespace partita
