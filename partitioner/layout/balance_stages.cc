// best[p][k]: of the ways to cut the first k pieces into p stages, the time of the slowest stage and the sum of
// crossings.
#include "partitioner/layout/balance_stages.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace partita {

std::vector<int> balanced_stages(const std::vector<CutPiece>& pieces, int stages) {
  const size_t n = pieces.size(), parts = static_cast<size_t>(stages);
  PARTITA_CHECK(parts >= 1 && n >= parts, "at least as many pieces as stages");
  using Cost = std::pair<double, double>;
  constexpr double kInfinite = 1e300;
  std::vector<double> sum(n + 1, 0);
  for (size_t k = 0; k < n; ++k) sum[k + 1] = sum[k] + pieces[k].work;
  std::vector<std::vector<Cost>> best(parts + 1, std::vector<Cost>(n + 1, {kInfinite, kInfinite}));
  std::vector<std::vector<size_t>> from(parts + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = {0, 0};
  for (size_t p = 1; p <= parts; ++p) {
    for (size_t k = p; k + (parts - p) <= n; ++k) {
      for (size_t j = k; j-- > p - 1;) {
        if (sum[k] - sum[j] > best[p][k].first) break;
        double crossing = j == 0 ? 0 : pieces[j].crossing;
        Cost cost{std::max(best[p - 1][j].first, sum[k] - sum[j] + crossing), best[p - 1][j].second + crossing};
        if (cost < best[p][k]) best[p][k] = cost, from[p][k] = j;
      }
    }
  }
  std::vector<int> stage(n, 0);
  for (size_t p = parts, k = n; p > 0; k = from[p][k], --p) {
    for (size_t j = from[p][k]; j < k; ++j) stage[j] = static_cast<int>(p) - 1;
  }
  return stage;
}

}  // namespace partita
