// Goes on with texts, token after token: each time the whole window is computed anew.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/data_config.h"
#include "tools/predict/predictor.h"
#include "tools/predict/sampler.h"

namespace partita {

class Generator {
 public:
  // `predictor`: its first output has the scores of the token after each position, [samples x positions, vocabulary] in
  // any shape with these elements. `columns`: as the recipe's data have them, which input takes what of the tokens
  // (docs/data.md); by their names otherwise. InvalidArgument where no input takes tokens, or one that is needed
  // takes something else.
  static absl::StatusOr<std::unique_ptr<Generator>> open(std::unique_ptr<Predictor> predictor,
                                                         const runtime::DataConfig& columns);

  int64_t samples() const { return samples_; }
  int64_t positions() const { return positions_; }  // the most tokens that the next one is drawn after
  int64_t vocabulary() const { return vocabulary_; }
  // Draws one more token for each of samples() texts, none of them empty, from their last positions() tokens.
  // InvalidArgument for ids outside the vocabulary.
  absl::Status extend(std::vector<std::vector<int64_t>>& texts, const SamplerOptions& options);

 private:
  Generator() = default;
  absl::Status stage(const std::vector<std::vector<int64_t>>& texts) const;

  std::unique_ptr<Predictor> predictor_;
  size_t tokens_ = 0;  // the input that takes them
  int64_t samples_ = 1, positions_ = 0, vocabulary_ = 0, width_ = 0;
};

}  // namespace partita
