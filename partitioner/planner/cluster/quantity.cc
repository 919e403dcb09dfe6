#include "partitioner/planner/cluster/quantity.h"

#include <optional>

#include "base/cat.h"

namespace partita {
namespace {

// What a unit is called, and how much of the base unit it is.
struct Name {
  std::string_view text;
  double factor;
};
constexpr Name kBytes[] = {{"B", 1}},
               kRates[] = {{"B/s", 1}, {"Bps", 1}, {"b/s", 0.125}, {"bps", 0.125}, {"bit/s", 0.125}},
               kTimes[] = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}},
               kFlops[] = {{"FLOP/s", 1}, {"FLOPS", 1}, {"Flop/s", 1}, {"flop/s", 1}};
constexpr Name kLarge[] = {{"", 1},     {"k", 1e3},     {"M", 1e6},     {"G", 1e9},     {"T", 1e12},
                           {"P", 1e15}, {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};
constexpr Name kSmall[] = {{"", 1}, {"m", 1e-3}, {"u", 1e-6}, {"µ", 1e-6}, {"n", 1e-9}};

struct UnitRow {
  std::span<const Name> names, prefixes;
  std::string_view example;
};

UnitRow row_of(Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return {kBytes, kLarge, "bytes, or as in 80GB"};
    case Unit::kBytesPerSecond:
      return {kRates, kLarge, "bytes per second, or as in 25GB/s or 200Gb/s"};
    case Unit::kSeconds:
      return {kTimes, kSmall, "seconds, or as in 5us or 12h"};
    case Unit::kFlops:
      return {kFlops, kLarge, "FLOP/s, or as in 312TFLOP/s"};
  }
  return {kBytes, kLarge, ""};
}

std::optional<double> factor_of(std::string_view text, const UnitRow& row) {
  for (const Name& prefix : row.prefixes) {
    for (const Name& name : row.names) {
      if (text == cat(prefix.text, name.text)) return prefix.factor * name.factor;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Quantity> read_quantity(const YamlNode& node, const std::string& path, Unit unit,
                                       const NumberRange& range) {
  const UnitRow row = row_of(unit);
  const std::string_view text = node.text;
  const size_t digits = text.find_first_not_of("+-.0123456789");
  const bool exponent = digits != text.npos && (text[digits] == 'e' || text[digits] == 'E') &&
                        text.find_first_of("0123456789", digits) != text.npos;
  const size_t end = exponent ? text.find_first_not_of("+-0123456789", digits + 1) : digits;
  if (node.kind != YamlNode::Kind::kScalar || end == text.npos || end == 0) {
    auto number = read_number(node, path, range);
    if (number.ok()) return Quantity{*number, false};
    return unexpected(node, path, cat(range.says, " (", row.example, ")"));
  }
  YamlNode alone = node;
  alone.text = std::string(text.substr(0, end));
  alone.quoted = false;  // "25GB/s" is what 25GB/s is
  std::string_view rest = text.substr(end);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  const auto number = read_number(alone, path, range);
  const std::optional<double> factor = factor_of(rest, row);
  if (!number.ok() || !factor) return unexpected(node, path, cat(range.says, " (", row.example, ")"));
  return Quantity{*number * *factor, true};
}

}  // namespace partita
