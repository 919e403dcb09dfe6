// What a program of ours ends with: a table that scripts may rely on. docs/command_line.md#exit-codes has it in words.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace partita {

enum class ExitCode : int {
  kFine = 0,
  kFault = 1,
  kUsage = 2,
  kDoesNotFit = 3,
  kWrong = 4,
  kDiverged = 5,
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
    ExitMeaning{ExitCode::kDiverged, "training diverged", absl::StatusCode::kFailedPrecondition, false},
    ExitMeaning{ExitCode::kLost, "a rank was lost or hung", absl::StatusCode::kUnavailable, true},
    ExitMeaning{ExitCode::kStopped, "told to stop", absl::StatusCode::kCancelled, true},
};

// From here on a code is worth another start: ours, and 128 + N of a process that signal N ended.
inline constexpr int kFirstRetryCode = 128;
inline bool worth_retry(int code) { return code >= kFirstRetryCode; }

// Other failed preconditions are bad usage.
inline constexpr const char* kDivergedPayload = "partita/diverged";
inline absl::Status diverged_status(std::string_view message) {
  absl::Status status = absl::FailedPreconditionError(std::string(message));
  status.SetPayload(kDivergedPayload, absl::Cord());
  return status;
}

inline ExitCode exit_code_of(const absl::Status& status) {
  if (status.GetPayload(kDivergedPayload)) return ExitCode::kDiverged;
  if (status.code() == absl::StatusCode::kUnknown) return ExitCode::kFault;
  if (status.code() == absl::StatusCode::kDeadlineExceeded) return ExitCode::kLost;
  for (const ExitMeaning& m : kExitCodes) {
    if (m.status == status.code() && m.code != ExitCode::kDiverged) return m.code;
  }
  return ExitCode::kUsage;
}
inline int exit_code(const absl::Status& status) { return static_cast<int>(exit_code_of(status)); }

// Of a process that ended with `code`: what our own program then says. Other programs' codes are lost ranks where they
// are worth a retry, and else bad usage.
inline absl::Status status_of_exit(int code, const std::string& message) {
  if (code == static_cast<int>(ExitCode::kDiverged)) return diverged_status(message);
  for (const ExitMeaning& m : kExitCodes) {
    if (static_cast<int>(m.code) == code) return absl::Status(m.status, message);
  }
  return absl::Status(worth_retry(code) ? absl::StatusCode::kUnavailable : absl::StatusCode::kInvalidArgument, message);
}

}  // namespace partita
