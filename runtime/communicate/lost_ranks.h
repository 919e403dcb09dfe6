// Errors that other ranks are to blame for: what is told of those, where nobody knows better who saw their end.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace partita::runtime {

struct LostRanks {
  std::string text;   // "rank 2 died: its connection closed"
  bool ended = true;  // else they may be there, and do not answer
};

inline constexpr const char* kLostPayload = "partita/lost ranks";

// Unavailable; contexts that are added leave what is told of the ranks as it is.
inline absl::Status lost_error(std::string_view message, const LostRanks& lost) {
  absl::Status status = absl::UnavailableError(std::string(message));
  status.SetPayload(kLostPayload, absl::Cord((lost.ended ? "+" : "-") + lost.text));
  return status;
}

inline std::optional<LostRanks> lost_ranks(const absl::Status& status) {
  const auto payload = status.GetPayload(kLostPayload);
  if (!payload) return std::nullopt;
  const std::string text(*payload);
  return LostRanks{text.substr(1), text[0] == '+'};
}

}  // namespace partita::runtime
