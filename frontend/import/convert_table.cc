#include "frontend/import/convert_table.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace partita {
namespace {

constexpr std::span<const ConvertEntry> (*kTables[])() = {
    activation_table, attention_table, contraction_table, control_table,       convolution_table, elementwise_table,
    fourier_table,    indexing_table,  loss_table,        normalization_table, random_table,      recurrent_table,
    reduction_table,  resize_table,    sampling_table,    shape_table,         slicing_table,
};

using Key = std::pair<std::string_view, std::string_view>;

const absl::flat_hash_map<Key, std::vector<const ConvertEntry*>>& by_name() {
  static const auto* const kMap = [] {
    auto* map = new absl::flat_hash_map<Key, std::vector<const ConvertEntry*>>();
    for (auto table : kTables) {
      for (const ConvertEntry& entry : table()) (*map)[{entry.domain, entry.op}].push_back(&entry);
    }
    return map;
  }();
  return *kMap;
}

constexpr std::pair<std::string_view, std::string_view> kAdvice[] = {
    {"NonZero", "its result's size depends on data; multiply by the mask or use Where instead"},
    {"Unique", "its result's size depends on data; use one-hot counts of a fixed size instead"},
    {"Compress", "its result's size depends on data unless the condition is constant; use Where instead"},
    {"NonMaxSuppression", "its result's size depends on data; leave it out of the training graph"},
    {"StringNormalizer", "strings are not supported; tokenize before training"},
    {"TfIdfVectorizer", "do it before training, in the data"},
    {"QLinearConv", "quantized inference operators cannot be trained; export the float model"},
    {"QLinearMatMul", "quantized inference operators cannot be trained; export the float model"},
    {"ConvInteger", "quantized inference operators cannot be trained; export the float model"},
    {"MatMulInteger", "quantized inference operators cannot be trained; export the float model"},
};

}  // namespace

const ConvertEntry* find_converter(std::string_view domain, std::string_view op, int version) {
  auto at = by_name().find(Key{domain, op});
  if (at == by_name().end()) return nullptr;
  const ConvertEntry* best = nullptr;
  for (const ConvertEntry* entry : at->second) {
    if (entry->since <= version && (!best || entry->since > best->since)) best = entry;
  }
  return best;
}

std::string_view advice_for(std::string_view op) {
  for (const auto& [name, advice] : kAdvice) {
    if (name == op) return advice;
  }
  return "";
}

}  // namespace partita
