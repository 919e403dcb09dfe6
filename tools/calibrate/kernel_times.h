// Times of the runtime's library kernels on a team of ranks, from which rates are made.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tools/calibrate/rank_team.h"

namespace partita {

class KernelTimes {
 public:
  // A machine that others use too is slow for seconds at a time: all is to be measured so often, apart.
  static constexpr int kPasses = 3;

  explicit KernelTimes(RankTeam team) : team_(std::move(team)) { team_.most_seconds /= kPasses; }

  // Of one run: the usual time of this pass's rounds, or the middle one of several passes that asked for the same step.
  // Of a training step's kernels few meet what the shortest round met.
  absl::StatusOr<double> seconds(const runtime::Step& step);
  // The same of any work; `name` tells it from others.
  absl::StatusOr<double> seconds(const std::string& name, const PrepareRank& prepare);

  // A product of [m, k] by [k, n], in flop/s.
  absl::StatusOr<double> product_rate(DType dtype, int64_t m, int64_t n, int64_t k, bool tf32 = false);
  // A convolution with windows of 3 x 3 and its two gradients, in flop/s, padding included. `plane`: the result's edge.
  struct Convolution {
    DType dtype;
    int64_t batch, from, to, plane, stride;
  };
  absl::StatusOr<double> convolution_rate(const Convolution& c);
  // Causal attention of [batch, heads, length, size] in flop/s, of pairs that the mask leaves.
  struct Attention {
    DType dtype;
    int64_t batch, heads, length, size;
  };
  struct AttentionRates {
    double forward = 0, backward = 0;
  };
  absl::StatusOr<AttentionRates> attention_rates(const Attention& a);

  // Mean over all timings of median over shortest round, less 1.
  double noise() const { return noise_ / std::max(timings_, 1.0); }

 private:
  using Shapes = std::vector<std::vector<int64_t>>;
  using Key = std::tuple<std::string, DType, runtime::Params, Shapes>;
  absl::StatusOr<double> time(const Key& key, const PrepareRank& prepare);

  RankTeam team_;
  std::map<Key, std::vector<double>> usual_;  // by pass
  double noise_ = 0, timings_ = 0;
};

}  // namespace partita
