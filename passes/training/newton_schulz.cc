#include "passes/training/newton_schulz.h"

#include <algorithm>
#include <cmath>

namespace partita {

ValueId newton_schulz(Builder& b, ValueId x, const std::array<double, 3>& coefficients, int64_t steps) {
  const auto [first, third, fifth] = coefficients;
  const Shape shape = b.shape(x);
  const bool tall = shape[0] > shape[1];
  for (int64_t k = 0; k < steps; ++k) {
    ValueId gram = tall ? b.matmul(x, x, true, false) : b.matmul(x, x, false, true);
    ValueId square = b.scale(b.matmul(gram, gram), fifth), polynomial = b.add(b.scale(gram, third), square);
    ValueId product = tall ? b.matmul(x, polynomial) : b.matmul(polynomial, x);
    x = b.add(b.scale(x, first), product);
  }
  return x;
}

double adjusted_rate(AdjustLr rule, const Shape& shape) {
  const double rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
  switch (rule) {
    case AdjustLr::kOriginal:
      return std::sqrt(std::max(1.0, rows / columns));
    case AdjustLr::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(rows, columns));
    case AdjustLr::kSpectralUnclamped:
      return std::sqrt(rows / columns);
  }
  return 1;
}

}  // namespace partita
