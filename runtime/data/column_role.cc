#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/sample_reader.h"

namespace partita::runtime {
namespace {

constexpr std::pair<std::string_view, ColumnRole> kRoles[] = {{"input_ids", ColumnRole::kInputIds},
                                                              {"labels", ColumnRole::kLabels},
                                                              {"position_ids", ColumnRole::kPositions},
                                                              {"documents", ColumnRole::kDocuments},
                                                              {"ones", ColumnRole::kOnes},
                                                              {"attention_mask", ColumnRole::kOnes},
                                                              {"zeros", ColumnRole::kZeros},
                                                              {"token_type_ids", ColumnRole::kZeros},
                                                              {"random", ColumnRole::kRandom}};

ColumnRole role_of_name(const std::string& input) {
  const std::string name = absl::AsciiStrToLower(input);
  auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("position")) return ColumnRole::kPositions;
  if (has("mask")) return ColumnRole::kOnes;
  if (has("token_type") || has("segment")) return ColumnRole::kZeros;
  if (has("label") || has("target") || name == "y") return ColumnRole::kLabels;
  if (has("input") || has("token") || name == "ids" || name == "idx" || name == "x") return ColumnRole::kInputIds;
  return ColumnRole::kUnknown;
}

}  // namespace

absl::StatusOr<ColumnRole> column_role(const DataConfig& config, const std::string& input) {
  auto it = config.columns.find(input);
  if (it == config.columns.end()) return role_of_name(input);
  for (const auto& [text, role] : kRoles) {
    if (text == it->second) return role;
  }
  return absl::InvalidArgumentError(
      cat("columns: input ", quote(input), " is given ", quote(it->second),
          "; expected input_ids, labels, position_ids, documents, ones, zeros or random"));
}

absl::StatusOr<std::vector<std::byte>> constant_sample(const InputSpec& spec, ColumnRole role) {
  const int64_t count = sample_elements(spec), last = spec.sample_shape.empty() ? 1 : spec.sample_shape.back();
  std::vector<int64_t> values(static_cast<size_t>(count), role == ColumnRole::kOnes ? 1 : 0);
  if (role == ColumnRole::kPositions) {
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = i % last;
  }
  PARTITA_ASSIGN_OR_RETURN(ConvertFunction convert, find_conversion(DType::kI64, spec.dtype));
  std::vector<std::byte> out(static_cast<size_t>(sample_bytes(spec)));
  const int64_t bad = convert(reinterpret_cast<const std::byte*>(values.data()), out.data(), count);
  if (bad >= 0)
    return absl::InvalidArgumentError(cat("input ", quote(spec.name), " of ", dtype_name(spec.dtype),
                                          " cannot hold the position ", values[static_cast<size_t>(bad)]));
  return out;
}

bool shifts_labels(const DataConfig& config, const std::string& input) {
  const std::vector<std::string>& inside = config.shifted_inside;
  return config.shift.value_or(std::find(inside.begin(), inside.end(), input) == inside.end());
}

std::string describe_column(const InputSpec& spec, ColumnRole role, bool shifted) {
  const char* what = role == ColumnRole::kInputIds    ? "the tokens"
                     : role == ColumnRole::kPositions ? "positions"
                     : role == ColumnRole::kDocuments ? "documents' numbers"
                     : role == ColumnRole::kOnes      ? "ones"
                     : role == ColumnRole::kZeros     ? "zeros"
                     : shifted                        ? "the next token"
                                                      : "the tokens; the model compares them with the next ones";
  return cat(quote(spec.name), ": ", what);
}

int64_t sample_elements(const InputSpec& spec) { return *element_count(spec.sample_shape); }
int64_t sample_bytes(const InputSpec& spec) { return sample_elements(spec) * dtype_size(spec.dtype); }

}  // namespace partita::runtime
