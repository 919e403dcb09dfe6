// What programs call those of their outputs that a recipe's metrics are, and how a metric's values become one: those of
// elements and runs of a step, and of an evaluation's batches.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "base/enum_names.h"

namespace partita {

enum class MetricReduction { kMean, kSum, kLast };
template <>
inline constexpr auto kEnumNames<MetricReduction> = name_table("mean", "sum", "last");

struct MetricOutput {
  MetricReduction reduction = MetricReduction::kMean;
  std::string name;
};

// "metric/REDUCTION/NAME"
inline std::string metric_output(const MetricOutput& metric) {
  return cat("metric/", enum_name(metric.reduction), "/", metric.name);
}

// Nothing where an output is no metric.
inline std::optional<MetricOutput> read_metric_output(std::string_view output) {
  constexpr std::string_view kStart = "metric/";
  const size_t slash = output.find('/', kStart.size());
  if (!output.starts_with(kStart) || slash == output.npos) return std::nullopt;
  const auto reduction = parse_enum<MetricReduction>(output.substr(kStart.size(), slash - kStart.size()));
  if (!reduction) return std::nullopt;
  return MetricOutput{*reduction, std::string(output.substr(slash + 1))};
}

}  // namespace partita
