// What a program of ours ends with.
#pragma once

#include "absl/status/status.h"

namespace partita {

// 0 fine; 1 internal fault; 2 bad input or usage; 3 does not fit (ResourceExhausted); 4 verification failed (Aborted);
// 129 worth a retry (Unavailable, DeadlineExceeded); 143 stopped by a signal (Cancelled).
int exit_code(const absl::Status& status);

}  // namespace partita
