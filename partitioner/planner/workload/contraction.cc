#include "partitioner/planner/workload/contraction.h"

#include <cmath>

namespace partita {

ContractionSizes contraction(const Formula& f, double flops, bool by_index) {
  ContractionSizes s;
  double* sizes[] = {&s.batch, &s.m, &s.n, &s.k};
  for (int i = 0; i < static_cast<int>(f.factors.size()); ++i) {
    bool a = has_factor(f.inputs[0], i), b = f.inputs.size() > 1 && has_factor(f.inputs[1], i);
    bool out = false;
    for (const FormulaOperand& o : f.outputs) out = out || has_factor(o, i);
    if (by_index && !out && !a && b &&
        f.factors[i].role == FactorRole::kWhole) {  // each matrix is multiplied with its own rows
      s.chosen = static_cast<double>(f.factors[i].size);
      continue;
    }
    int at = !out ? 3 : a && b ? 0 : b ? 2 : 1;
    if (!out && a && !b && f.factors[i].role == FactorRole::kWhole) {  // positions that a window slides over
      s.windows = true;
      s.from *= static_cast<double>(f.factors[i].size);
      continue;
    }
    if (out && !a && !b) s.to *= static_cast<double>(f.factors[i].size);
    *sizes[at] *= static_cast<double>(f.factors[i].size);
    s.of[at].push_back(i);
  }
  // A sum over windows visits more or fewer points than the factors have: its length says so.
  if (s.chosen > 0) s.batch *= s.chosen, s.m /= s.chosen;
  double points = 2 * s.batch * s.m * s.n * s.k;
  if (points > 0 && std::abs(points - flops) > 0.01 * flops) s.k *= flops / points;
  return s;
}

}  // namespace partita
