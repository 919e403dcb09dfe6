// What a program of ours ends with.
#pragma once

#include "absl/status/status.h"

namespace partita {

// 0 fine; 1 internal fault; 2 bad input or usage; 3 does not fit (ResourceExhausted); 4 verification failed (Aborted);
// 129 worth a retry (Unavailable, DeadlineExceeded); 143 stopped by a signal (Cancelled).
inline int exit_code(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return 1;
    case absl::StatusCode::kResourceExhausted:
      return 3;
    case absl::StatusCode::kAborted:
      return 4;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 129;
    case absl::StatusCode::kCancelled:
      return 143;  // as a shell says of a process that SIGTERM ended
    default:
      return 2;
  }
}

}  // namespace partita
