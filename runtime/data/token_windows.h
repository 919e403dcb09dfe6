// The windows that samples of tokens are, and what each input takes of one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/data_config.h"
#include "runtime/data/sample_reader.h"

namespace partita::runtime {

struct TokenWindows {
  int64_t sequence = 0;                // tokens of one; they do not overlap
  int64_t vocabulary = 0;              // ids are below it; 0: not known
  bool shifted = false;                // an input is the next tokens, which the last window must have, too
  std::vector<ColumnRole> roles = {};  // of the inputs
  int64_t together = 1;                // so many are a window of the largest length, where there are several

  // Whole ones in so many tokens.
  int64_t count(int64_t tokens) const {
    const int64_t usable = tokens - (shifted ? 1 : 0);
    return usable < sequence ? 0 : usable / (sequence * together) * together;
  }
};

// By config.columns, documents and sequence, else by what the inputs are. InvalidArgument where it is not clear.
absl::StatusOr<TokenWindows> token_windows(const DataConfig& config, const std::vector<InputSpec>& inputs);

}  // namespace partita::runtime
