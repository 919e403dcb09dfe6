// How long each phase of a run may take before the run is given up.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/record/flight_view.h"

namespace partita::runtime {

// What the user fixes, in seconds.
struct Timeouts {
  std::array<std::optional<double>, 5> phases;  // by Phase
  std::optional<double> collective;             // an operation of a step without a message from its peers

  // "PHASE=SECONDS": start, data, step, checkpoint, evaluation, collective. InvalidArgument.
  absl::Status set(const std::string& text);
};

// The limits in force: those that are fixed, else ten times the median step, at least 30 s for what a step is made of
// and 30 minutes for evaluations; 10 minutes for the start, and at least that until some steps have been measured. A
// checkpoint may take as long as it likes: its limit is the time without progress.
class TimeLimits {
 public:
  explicit TimeLimits(const Timeouts& fixed) : fixed_(fixed) {}

  void step_took(double seconds);
  std::chrono::milliseconds of(Phase phase) const;
  // Of an operation between ranks in a phase.
  std::chrono::milliseconds of_collective(Phase phase) const;

 private:
  std::chrono::milliseconds measured(double least) const;

  Timeouts fixed_;
  std::vector<double> steps_;  // the newest, a ring
  size_t taken_ = 0;
  double median_ = 0;
};

}  // namespace partita::runtime
