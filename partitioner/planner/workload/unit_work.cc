#include <algorithm>
#include <numeric>

#include "partitioner/planner/workload/workload.h"

namespace partita {
namespace {

double sum_flops(const std::vector<MatrixWork>& list) {
  double f = 0;
  for (const MatrixWork& m : list) f += m.flops();
  return f;
}

}  // namespace

double AttentionWork::ranks(double tensor) const {
  if (!split) return 1;
  const int64_t t = static_cast<int64_t>(tensor), keys = std::gcd(split_key_heads, t);
  return static_cast<double>(keys * std::gcd(split_heads / split_key_heads, t / keys));
}

double UnitWork::forward_flops() const {
  double f = sum_flops(matrices);
  for (const AttentionWork& a : attention) f += a.forward_flops * a.count;
  return f;
}

double UnitWork::backward_flops() const {
  double f = sum_flops(input_gradients) + sum_flops(weight_gradients);
  for (const AttentionWork& a : attention) f += 2 * a.forward_flops * a.count;
  return f;
}

double UnitWork::head_ranks(double tensor) const {
  double ranks = tensor;
  for (const AttentionWork& a : attention) {
    if (a.split) ranks = std::min(ranks, a.ranks(tensor));
  }
  return ranks;
}

double UnitWork::share_beyond(double tensor) const { return 1 / head_ranks(tensor) - 1 / tensor; }

double UnitWork::parameters_beyond(double tensor) const {
  return (from_heads + (head_ranks(tensor) > 1 ? to_heads : 0)) * share_beyond(tensor);
}

}  // namespace partita
