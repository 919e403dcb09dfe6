// 1. Blocks go from one mode to one that frees more, by the step that costs least a byte, as many of a kind at once as
//    are needed; the last of them may free more than is missing.
// 2. Blocks go back to cheaper modes where what is then freed is still enough, by the move that saves most.
#include "partitioner/planner/cost/recompute_knapsack.h"

#include <algorithm>
#include <cmath>

namespace partita {
namespace {

constexpr size_t kKept = static_cast<size_t>(RecomputeMode::kNone);

struct Move {
  size_t kind = 0, from = 0, to = 0;
  double bytes = 0, seconds = 0;
};

class Choice {
 public:
  explicit Choice(const std::vector<RecomputeItems>& items) : items_(items), counts_(items.size()) {
    for (size_t k = 0; k < items.size(); ++k) counts_[k].fill(0), counts_[k][kKept] = items[k].count;
  }

  bool free(double bytes) {
    for (missing_ = bytes; missing_ > 0;) {
      const std::optional<Move> step = best([](const Move& m) { return m.bytes > 0 ? m.seconds / m.bytes : kNever; });
      if (!step) return false;
      const double wanted = std::ceil(missing_ / step->bytes);
      take(*step, static_cast<int>(std::min<double>(wanted, counts_[step->kind][step->from])));
    }
    return true;
  }

  void give_back() {
    while (const std::optional<Move> step =
               best([&](const Move& m) { return m.seconds < 0 && missing_ - m.bytes <= 0 ? m.seconds : kNever; }))
      take(*step, 1);
  }

  const std::vector<std::array<int, kRecomputeModes>>& counts() const { return counts_; }

 private:
  static constexpr double kNever = 1e300;

  // The move of one block that costs least, by `price`; nullopt where all cost kNever.
  template <typename Price>
  std::optional<Move> best(Price price) const {
    std::optional<Move> found;
    double least = kNever;
    for (size_t k = 0; k < items_.size(); ++k)
      for (size_t from = kKept; from < kRecomputeModes; ++from)
        for (size_t to = kKept; counts_[k][from] > 0 && to < kRecomputeModes; ++to) {
          const RecomputeItems::Mode &a = items_[k].modes[from], &b = items_[k].modes[to];
          if (to == from || (to != kKept && b.bytes <= 0)) continue;
          const Move m{k, from, to, b.bytes - a.bytes, b.seconds - a.seconds};
          if (const double cost = price(m); cost < least) least = cost, found = m;
        }
    return found;
  }

  void take(const Move& m, int blocks) {
    counts_[m.kind][m.from] -= blocks, counts_[m.kind][m.to] += blocks;
    missing_ -= blocks * m.bytes;
  }

  const std::vector<RecomputeItems>& items_;
  std::vector<std::array<int, kRecomputeModes>> counts_;
  double missing_ = 0;
};

}  // namespace

std::optional<std::vector<std::array<int, kRecomputeModes>>> choose_recompute(const std::vector<RecomputeItems>& items,
                                                                              double bytes) {
  Choice choice(items);
  if (!choice.free(bytes)) return std::nullopt;
  choice.give_back();
  return choice.counts();
}

}  // namespace partita
