#pragma once

#include "absl/status/status.h"
#include "base/cat.h"

namespace partita::verifier {

// What a proof ends with that does not hold: the program of a rank differs from what it must be. The parts say what was
// expected and what was found; who knows the place puts it in front.
template <typename... Args>
absl::Status differs(const Args&... args) {
  return absl::AbortedError(cat(args...));
}

}  // namespace partita::verifier
