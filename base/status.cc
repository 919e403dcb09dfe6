#include "base/status.h"

#include <stdexcept>

#include "base/cat.h"

namespace partita {

void internal_fault(const char* file, int line, const char* condition, const std::string& message) {
  throw std::logic_error(cat("internal fault at ", file, ":", line, ": ", condition, " does not hold: ", message));
}

absl::Status with_context(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  absl::Status longer(status.code(), context + ": " + std::string(status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) { longer.SetPayload(type, payload); });
  return longer;
}

}  // namespace partita
