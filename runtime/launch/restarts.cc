#include "runtime/launch/restarts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "base/cat.h"
#include "base/exit_code.h"

namespace partita::runtime {
namespace {

constexpr double kHour = 3600, kLongest = 60;  // seconds
constexpr auto kPoll = std::chrono::milliseconds(20);

}  // namespace

void add_place(std::span<const FlightView> ranks, const Diagnosis& diagnosis, AttemptEnd& end) {
  if (!diagnosis.root) return;
  const RankFate& root = *diagnosis.root;
  end.rank = root.rank;
  const auto its = std::find_if(ranks.begin(), ranks.end(), [&](const FlightView& v) { return v.rank == root.rank; });
  if (its == ranks.end() || its->phase == Phase::kStart) return;
  end.step = its->training_step;
  // One that told so itself was at what takes too long, or was stopped.
  const bool told = root.kind == FateKind::kFailed && its->end_code == static_cast<int>(ExitCode::kLost);
  if (!told && root.kind != FateKind::kHangs && root.kind != FateKind::kSilent) return;
  end.hung = its->at.empty() ? its->operation() : its->at;
  for (const FlightView& v : ranks) {
    const std::vector<int> peers = v.waits_for();
    if (std::find(peers.begin(), peers.end(), root.rank) != peers.end()) end.hung = v.operation();
  }
}

int Restarts::step_times(const AttemptEnd& end) const { return end.step && end.step == step_ ? at_same_step_ + 1 : 1; }

int Restarts::hung_times(const AttemptEnd& end) const {
  if (end.hung.empty() || !end.step) return 0;
  return end.hung == hung_ && std::abs(*end.step - hung_step_) <= kNear ? hung_in_a_row_ + 1 : 1;
}

absl::StatusOr<double> Restarts::next(const AttemptEnd& end, double now) {
  if (!worth_retry(exit_code(end.status)) || count_ >= limits_.most) return end.status;
  at_same_step_ = step_times(end);
  step_ = end.step;
  hung_in_a_row_ = hung_times(end);
  if (hung_in_a_row_ < 2) hung_ = end.hung, hung_step_ = end.step.value_or(0);
  if (hung_in_a_row_ >= kLoop)
    return absl::InternalError(cat("the run hung ", hung_in_a_row_, " times in a row in ", hung_,
                                   ", and got no further than training step ", *end.step + 1,
                                   ": it is that operation, and no host that was lost; ", end.status.message()));
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
