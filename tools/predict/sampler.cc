#include "tools/predict/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/math/philox.h"

namespace partita {
namespace {

struct Candidate {
  int64_t token = 0;
  double score = 0;
};

// Highest first, no more than top_k.
std::vector<Candidate> candidates(std::span<const float> scores, int64_t top_k) {
  std::vector<Candidate> all;
  for (size_t k = 0; k < scores.size(); ++k)
    all.push_back({static_cast<int64_t>(k), std::isnan(scores[k]) ? -INFINITY : static_cast<double>(scores[k])});
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  if (top_k > 0 && top_k < static_cast<int64_t>(all.size())) all.resize(static_cast<size_t>(top_k));
  return all;
}

}  // namespace

int64_t draw_token(std::span<const float> scores, const SamplerOptions& options, uint64_t row, uint64_t index) {
  std::vector<Candidate> all = candidates(scores, options.temperature == 0 ? 1 : options.top_k);
  if (all.size() == 1 || !std::isfinite(all[0].score)) return all[0].token;
  std::vector<double> share;
  for (const Candidate& c : all) share.push_back(std::exp((c.score - all[0].score) / options.temperature));
  const double total = std::accumulate(share.begin(), share.end(), 0.0);
  double kept = 0;
  size_t count = 0;
  while (count < share.size() && (count == 0 || kept < options.top_p * total)) kept += share[count++];
  const auto words = philox(index, row, options.seed);
  double left = (words[0] + 0.5) * 0x1p-32 * kept;
  for (size_t k = 0; k < count; ++k) {
    if ((left -= share[k]) < 0) return all[k].token;
  }
  return all[count - 1].token;
}

}  // namespace partita
