#include "runtime/metrics/rank_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/status.h"
#include "runtime/communicate/exchanges.h"

namespace partita::runtime {
namespace {

constexpr double kLookSeconds = 1;
constexpr int64_t kMostSteps = 1000;  // from one look to the next

}  // namespace

absl::StatusOr<const RankTimes::Seen*> RankTimes::add(double own, double whole) {
  if (!std::exchange(begun_, true)) return nullptr;
  own_ += own, whole_ += whole;
  if (++steps_ < interval_) return nullptr;
  const std::array<int64_t, 2> mine = {std::llround(own_ * 1e9), std::llround(whole_ * 1e9)};
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> all, all_gather(&communicator_, mine, "the ranks' times"));
  seen_.seconds.clear();
  double longest = 0;
  for (size_t k = 0; k < all.size(); k += 2) {
    seen_.seconds.push_back(1e-9 * static_cast<double>(all[k]) / static_cast<double>(steps_));
    longest = std::max(longest, 1e-9 * static_cast<double>(all[k + 1]) / static_cast<double>(steps_));
  }
  judge(steps_);
  // All ranks come to the same: it follows from what all have.
  interval_ = std::clamp<int64_t>(std::llround(kLookSeconds / std::max(longest, 1e-9)), 1, kMostSteps);
  own_ = whole_ = 0, steps_ = 0;
  return &seen_;
}

void RankTimes::judge(int64_t steps) {
  slow_for_.resize(seen_.seconds.size());
  seen_.slowest = {};
  std::map<int64_t, std::vector<double>> stages;
  for (size_t r = 0; r < seen_.seconds.size(); ++r) stages[stages_[r]].push_back(seen_.seconds[r]);
  std::map<int64_t, double> medians;
  for (auto& [stage, like] : stages) {
    // Of two the faster: the median of an even number is the lower of the two in the middle.
    const auto middle = like.begin() + static_cast<std::ptrdiff_t>((like.size() - 1) / 2);
    std::nth_element(like.begin(), middle, like.end());
    medians[stage] = *middle;
  }
  for (size_t r = 0; r < seen_.seconds.size(); ++r) {
    const double median = medians.at(stages_[r]);
    const double ratio = median > 0 ? seen_.seconds[r] / median : 1;
    const int64_t before = slow_for_[r];
    slow_for_[r] = ratio >= kSlow && seen_.seconds[r] - median >= kSlowSeconds ? before + steps : 0;
    if (ratio > seen_.slowest.ratio)
      seen_.slowest = {static_cast<int>(r), ratio, slow_for_[r], before < kSteps && slow_for_[r] >= kSteps};
  }
}

}  // namespace partita::runtime
