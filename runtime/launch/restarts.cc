#include "runtime/launch/restarts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/cat.h"
#include "base/exit_code.h"

namespace partita::runtime {
namespace {

constexpr double kHour = 3600, kLongest = 60;  // seconds
constexpr auto kPoll = std::chrono::milliseconds(20);

}  // namespace

absl::StatusOr<double> Restarts::next(const AttemptEnd& end, double now) {
  if (!worth_retry(exit_code(end.status)) || count_ >= limits_.most) return end.status;
  at_same_step_ = end.step && end.step == step_ ? at_same_step_ + 1 : 1;
  step_ = end.step;
  if (end.step && at_same_step_ >= kLoop) {
    const std::string text = cat("training step ", *end.step + 1, " has ended the run ", at_same_step_,
                                 " times in a row: it is that step, and no host that was lost",
                                 end.killed ? "; most likely memory ran out (dmesg)" : "", "; ", end.status.message());
    return end.killed ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
  }
  while (!times_.empty() && times_.front() <= now - kHour) times_.pop_front();
  if (static_cast<int>(times_.size()) >= limits_.per_hour)
    return absl::UnavailableError(cat(end.status.message(), "; it was started again ", times_.size(),
                                      " times within an hour, and --restarts-per-hour allows no more"));
  times_.push_back(now);
  ++count_;
  const std::optional<int64_t> reached = end.step ? end.step : end.saved;
  const bool further = reached && *reached > furthest_;
  if (further) furthest_ = *reached;
  in_vain_ = further || end.seconds >= kWell ? 0 : in_vain_ + 1;
  return in_vain_ == 0 ? 0 : std::min(kLongest, std::exp2(in_vain_ - 1));
}

bool sleep_unless(const std::function<bool()>& stopped, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!stopped()) {
    if (std::chrono::steady_clock::now() >= end) return true;
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

}  // namespace partita::runtime
