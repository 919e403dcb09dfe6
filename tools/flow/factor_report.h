// The table of partitioner/audit/factor_table.h for a model file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "partitioner/audit/factor_table.h"

namespace partita {

struct FactorReport {
  std::string model;
  FactorTable table;
  double seconds = 0;
};

// `recipe` gives the loss, sizes of symbolic dimensions and what is trained; its optimizer, which would only add
// communication of its own, is left out. A symbolic batch that it does not give is 2.
absl::StatusOr<FactorReport> factor_report(const std::string& model, const Recipe& recipe);

std::string to_text(const FactorReport& report);
std::string to_markdown(const FactorReport& report);
std::string to_json(const FactorReport& report);  // one line

}  // namespace partita
