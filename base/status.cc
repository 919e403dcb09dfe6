#include "base/status.h"

namespace partita {

void internal_fault(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "partita: internal fault at %s:%d: %s does not hold: %s\n", file, line, condition,
               message.c_str());
  std::abort();
}

absl::Status with_context(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), context + ": " + std::string(status.message()));
}

}  // namespace partita
