// A learning-rate range test (Smith 2017): training at a rate that rises step by step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace partita {

struct RatePoint {
  double rate = 0, loss = 0;
};

struct RateAdvice {
  double steepest = 0;  // rate at which the smoothed loss falls fastest against the logarithm of the rate
  double highest = 0;   // a tenth of the rate of the lowest smoothed loss
  size_t used = 0;      // points before the loss left its lowest value behind for good (4 times, or not finite)
};

// InvalidArgument where fewer than 10 points can be used.
absl::StatusOr<RateAdvice> advise_rate(const std::vector<RatePoint>& points);
// The points of a metrics file (.jsonl).
absl::StatusOr<std::vector<RatePoint>> read_rate_points(const std::string& path);

}  // namespace partita
