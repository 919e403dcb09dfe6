#include "partitioner/planner/cluster/failure_rates.h"

#include "ir/yaml/yaml_fields.h"
#include "partitioner/planner/cluster/quantity.h"

namespace partita {

absl::Status parse_failure_rates(const YamlNode& node, const std::string& path, FailureRates& out) {
  using F = FailureRates;
  static constexpr NumberRange kSlowdown = {"a number of at least 1", [](double x) { return x >= 1; }};
  static const Fields<F> kFields = {
      {"source", text(&F::source)},
      {"device_mtbf", quantity(&F::device_mtbf, Unit::kSeconds, kNonNegative)},
      {"node_mtbf", quantity(&F::node_mtbf, Unit::kSeconds, kNonNegative)},
      {"repair", quantity(&F::repair, Unit::kSeconds, kNonNegative)},
      {"detect", quantity(&F::detect, Unit::kSeconds, kNonNegative)},
      {"restart", quantity(&F::restart, Unit::kSeconds, kNonNegative)},
      {"straggler_mtbf", quantity(&F::straggler_mtbf, Unit::kSeconds, kNonNegative)},
      {"straggler_slowdown", number(&F::straggler_slowdown, kSlowdown)},
      {"straggler_noticed", quantity(&F::straggler_noticed, Unit::kSeconds, kNonNegative)},
      {"checkpoint_bandwidth", quantity(&F::checkpoint_bandwidth, Unit::kBytesPerSecond, kPositive)},
  };
  return parse_fields(node, path, kFields, out);
}

}  // namespace partita
