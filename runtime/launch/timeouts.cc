#include "runtime/launch/timeouts.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "base/cat.h"
#include "base/quote.h"

namespace partita::runtime {
namespace {

using std::chrono::milliseconds;

constexpr double kLeast = 30, kStart = 600, kLong = 1800;  // seconds
constexpr double kMedians = 10, kMost = 1e7;
constexpr size_t kMeasured = 3, kKept = 32;  // steps

milliseconds from_seconds(double seconds) { return milliseconds(static_cast<int64_t>(seconds * 1000)); }

}  // namespace

absl::Status Timeouts::set(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const std::optional<Phase> phase = parse_enum<Phase>(name);
  double seconds = 0;
  if (equals == text.npos || (!phase && name != "collective"))
    return absl::InvalidArgumentError(
        cat("--timeout ", quote(text),
            ": expected PHASE=SECONDS with a phase of start, data, step, collective, checkpoint, evaluation"));
  if (!absl::SimpleAtod(text.substr(equals + 1), &seconds) || !(seconds > 0) || seconds > kMost)
    return absl::InvalidArgumentError(
        cat("--timeout ", quote(text), ": expected seconds above 0 and up to ", static_cast<int64_t>(kMost)));
  (phase ? phases[static_cast<size_t>(*phase)] : collective) = seconds;
  return absl::OkStatus();
}

void TimeLimits::step_took(double seconds) {
  if (steps_.size() < kKept) steps_.push_back(0);
  steps_[taken_++ % kKept] = seconds;
  std::vector<double> sorted = steps_;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2), sorted.end());
  median_ = sorted[sorted.size() / 2];
}

milliseconds TimeLimits::measured(double least) const {
  const bool known = taken_ >= kMeasured;
  return from_seconds(std::max(known ? least : std::max(least, kStart), known ? kMedians * median_ : 0));
}

milliseconds TimeLimits::of(Phase phase) const {
  if (const auto& fixed = fixed_.phases[static_cast<size_t>(phase)]) return from_seconds(*fixed);
  if (phase == Phase::kStart) return from_seconds(kStart);
  return measured(phase == Phase::kEvaluation ? kLong : kLeast);
}

milliseconds TimeLimits::of_collective(Phase phase) const {
  if (phase != Phase::kData && phase != Phase::kStep) return of(phase);
  return fixed_.collective ? from_seconds(*fixed_.collective) : measured(kLeast);
}

}  // namespace partita::runtime
