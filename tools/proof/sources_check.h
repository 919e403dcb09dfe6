// The head of the chain: that a bundle's serial program is what a model and a recipe mean.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "nlohmann/json.hpp"
#include "runtime/program/bundle_files.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

struct Sources {
  std::string model, train_file;       // as `partita compile` was given them
  std::optional<Precision> precision;  // likewise, in place of the recipe's
};

// Imports model and recipe anew, in the form that the layout decided (SerialForm, of which the manifest tells), and
// holds against them the serial graphs of training and evaluation, what a run goes by, and the first weights. Aborted
// with the first node, key or weight that differs, what was expected and what was found; errors of reading the model.
// Returns what the certificate names: files and their SHA-256.
absl::StatusOr<nlohmann::json> check_sources(const Sources& sources, const runtime::BundleFiles& files,
                                             const verifier::Bundle& bundle);

}  // namespace partita
