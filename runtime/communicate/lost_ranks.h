// Errors that other ranks are to blame for: what is told of those, where nobody knows better who saw their end.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "base/cat.h"
#include "base/exit_code.h"
#include "runtime/communicate/transport.h"

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

// The reason of an abort, with what the rank that gives up ends with, where another start would not help: those that
// hear of it end with the same, whichever of them a launcher looks at.
inline constexpr std::string_view kCodeFollows = "\x1f";
inline std::string with_code(std::string_view reason, int code) {
  return worth_retry(code) ? std::string(reason) : cat(reason, kCodeFollows, code);
}

inline constexpr const char* kCodePayload = "partita/code of another rank";

// Unavailable, of such a reason.
inline absl::Status gave_up_error(std::string_view reason) {
  const size_t at = reason.rfind(kCodeFollows);
  absl::Status status = absl::UnavailableError(printable(reason.substr(0, at)));
  if (at != reason.npos) status.SetPayload(kCodePayload, absl::Cord(std::string(reason.substr(at + 1))));
  return status;
}

// What a rank ends with after this error.
inline int end_code(const absl::Status& status) {
  const auto payload = status.GetPayload(kCodePayload);
  int code = 0;
  const bool known = payload && absl::SimpleAtoi(std::string(*payload), &code) && code > 0 && !worth_retry(code);
  return known ? code : exit_code(status);
}

inline std::optional<LostRanks> lost_ranks(const absl::Status& status) {
  const auto payload = status.GetPayload(kLostPayload);
  if (!payload) return std::nullopt;
  const std::string text(*payload);
  return LostRanks{text.substr(1), text[0] == '+'};
}

}  // namespace partita::runtime
