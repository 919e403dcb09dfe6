// The table of converters: ONNX operator, version since which the entry holds -> function. An operator that is not here
// is expanded through its function body.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "frontend/import/conversion.h"

namespace partita {

struct ConvertEntry {
  std::string_view op;
  int since;
  void (*convert)(Conversion&);
  std::string_view domain = "";
};

// The entry with the largest `since` <= version, or nullptr.
const ConvertEntry* find_converter(std::string_view domain, std::string_view op, int version);

// Why an operator cannot be supported and what to do about it; "" where nothing is known.
std::string_view advice_for(std::string_view op);

// One table per family, in frontend/convert/.
std::span<const ConvertEntry> activation_table();
std::span<const ConvertEntry> attention_table();
std::span<const ConvertEntry> contraction_table();
std::span<const ConvertEntry> control_table();
std::span<const ConvertEntry> convolution_table();
std::span<const ConvertEntry> elementwise_table();
std::span<const ConvertEntry> fourier_table();
std::span<const ConvertEntry> indexing_table();
std::span<const ConvertEntry> loss_table();
std::span<const ConvertEntry> normalization_table();
std::span<const ConvertEntry> random_table();
std::span<const ConvertEntry> recurrent_table();
std::span<const ConvertEntry> reduction_table();
std::span<const ConvertEntry> resize_table();
std::span<const ConvertEntry> sampling_table();
std::span<const ConvertEntry> shape_table();
std::span<const ConvertEntry> slicing_table();

}  // namespace partita
