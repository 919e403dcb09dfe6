#include "tools/cli/find_rate.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/cat.h"
#include "base/quote.h"
#include "nlohmann/json.hpp"

namespace partita {

absl::StatusOr<RateAdvice> advise_rate(const std::vector<RatePoint>& points) {
  constexpr double kMemory = 0.8;
  constexpr size_t kFewest = 10;
  std::vector<double> smooth;
  double average = 0, weight = 0, lowest = INFINITY;
  for (const RatePoint& p : points) {
    if (!std::isfinite(p.loss)) break;
    average = kMemory * average + (1 - kMemory) * p.loss;
    weight = kMemory * weight + (1 - kMemory);
    const double now = average / weight;
    if (smooth.size() > kFewest && now > 4 * std::abs(lowest)) break;
    smooth.push_back(now);
    lowest = std::min(lowest, now);
  }
  if (smooth.size() < kFewest)
    return absl::InvalidArgumentError(cat("only ", smooth.size(), " of ", points.size(),
                                          " steps had a usable loss; try a smaller --find-lr, or more --steps"));
  RateAdvice advice{.steepest = points[1].rate, .highest = 0, .used = smooth.size()};
  double best = INFINITY;
  for (size_t k = 1; k + 1 < smooth.size(); ++k) {
    const double slope =
        (smooth[k + 1] - smooth[k - 1]) / (std::log(points[k + 1].rate) - std::log(points[k - 1].rate));
    if (slope < best) best = slope, advice.steepest = points[k].rate;
  }
  const size_t at = static_cast<size_t>(std::min_element(smooth.begin(), smooth.end()) - smooth.begin());
  advice.highest = points[at].rate / 10;
  return advice;
}

absl::StatusOr<std::vector<RatePoint>> read_rate_points(const std::string& path) {
  std::vector<RatePoint> points;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_object() || !j.contains("lr") || !j["lr"].is_number())
      return absl::InternalError(cat(quote(path), ": a line without a learning rate"));
    points.push_back({j["lr"].get<double>(), j["loss"].is_number() ? j["loss"].get<double>() : NAN});
  }
  return points;
}

}  // namespace partita
