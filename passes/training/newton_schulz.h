// The orthogonal factor of a matrix, roughly, by products of matrices alone: what Muon steps along. A split of the
// matrix splits the products as it splits any (docs/parallelism.md).
#pragma once

#include <array>

#include "ir/graph/builder.h"
#include "ir/recipe/recipe.h"

namespace partita {

// `x`: a matrix [m, n] of which no singular value is above 1. After each of `steps` steps x is a x + b (x x^T) x + c (x
// x^T)^2 x, with the coefficients (a, b, c), which brings every singular value near 1. The products with x's own
// transpose are of the smaller of m and n, as in torch.optim.Muon.
ValueId newton_schulz(Builder& b, ValueId x, const std::array<double, 3>& coefficients, int64_t steps);

// What the learning rate of a matrix of this shape is multiplied by.
double adjusted_rate(AdjustLr rule, const Shape& shape);

}  // namespace partita
