// What a product's step computes, epilogue and all, in wide arithmetic.
#pragma once

#include <span>
#include <vector>

#include "ir/graph/evaluate.h"
#include "runtime/program/program.h"

namespace partita {

// `held`: what its first result held before.
std::vector<Tensor> evaluate_product(const runtime::Step& step, std::span<const Tensor> inputs, const Tensor& held);

}  // namespace partita
