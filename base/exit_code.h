// What a program of ours ends with: a table that scripts may rely on. docs/command_line.md#exit-codes has it in words.
#pragma once

#include <array>
#include <string_view>

#include "absl/status/status.h"

namespace partita {

enum class ExitCode : int {
  kFine = 0,
  kFault = 1,
  kUsage = 2,
  kDoesNotFit = 3,
  kWrong = 4,
  kLost = 129,
  kStopped = 143,  // as a shell says of a process that SIGTERM ended
};

struct ExitMeaning {
  ExitCode code;
  std::string_view meaning;
  absl::StatusCode status;  // that stands for it within a program
  bool retry;               // the same command may end otherwise
};

inline constexpr std::array kExitCodes = {
    ExitMeaning{ExitCode::kFine, "fine", absl::StatusCode::kOk, false},
    ExitMeaning{ExitCode::kFault, "internal fault", absl::StatusCode::kInternal, false},
    ExitMeaning{ExitCode::kUsage, "bad input or usage", absl::StatusCode::kInvalidArgument, false},
    ExitMeaning{ExitCode::kDoesNotFit, "does not fit", absl::StatusCode::kResourceExhausted, false},
    ExitMeaning{ExitCode::kWrong, "verification failed", absl::StatusCode::kAborted, false},
    ExitMeaning{ExitCode::kLost, "a rank was lost or hung", absl::StatusCode::kUnavailable, true},
    ExitMeaning{ExitCode::kStopped, "told to stop", absl::StatusCode::kCancelled, true},
};

// From here on a code is worth another start: ours, and 128 + N of a process that signal N ended.
inline constexpr int kFirstRetryCode = 128;
inline bool worth_retry(int code) { return code >= kFirstRetryCode; }

inline ExitCode exit_code_of(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kUnknown) return ExitCode::kFault;
  if (status.code() == absl::StatusCode::kDeadlineExceeded) return ExitCode::kLost;
  for (const ExitMeaning& m : kExitCodes) {
    if (m.status == status.code()) return m.code;
  }
  return ExitCode::kUsage;
}
inline int exit_code(const absl::Status& status) { return static_cast<int>(exit_code_of(status)); }

// Of a process that ended with `code`: what our own program then says. Other programs' codes are lost ranks where they
// are worth a retry, and else bad usage.
inline absl::StatusCode status_code_of(int code) {
  for (const ExitMeaning& m : kExitCodes) {
    if (static_cast<int>(m.code) == code) return m.status;
  }
  return worth_retry(code) ? absl::StatusCode::kUnavailable : absl::StatusCode::kInvalidArgument;
}

}  // namespace partita
