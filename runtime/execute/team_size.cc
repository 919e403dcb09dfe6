#include "runtime/execute/team_size.h"

#include <algorithm>
#include <bit>

#include "base/box.h"
#include "runtime/program/sides.h"

namespace partita::runtime {
namespace {

// Of one thread, in its caches.
constexpr double kFlopsPerSecond = 1e11, kBytesPerSecond = 5e10;
// For each doubling of the team, on top of one.
constexpr double kMeetingSeconds = 1e-5;
// Of a step's time, at least.
constexpr double kWorthwhile = 0.25;
// Steps of a stretch, of which the first ones bring things into the caches; steps after which others are tried again,
// twice as many each time up to the most.
constexpr int64_t kStretch = 64, kFirst = 8, kSettled = 512, kMostSettled = 8192;
// So much longer than when it was chosen, in so many stretches one after the other, and all are tried again.
constexpr double kSlower = 1.25;
constexpr int kSlowStretches = 3;

double seconds_alone(const Step& step) {
  int64_t bytes = step.bytes;
  for (const Operand& o : step.operands) {
    if (step.bytes == 0 && o.dtype != DType::kInvalid) bytes += *element_count(o.shape) * dtype_size(o.dtype);
  }
  return std::max(static_cast<double>(step.flops) / kFlopsPerSecond, static_cast<double>(bytes) / kBytesPerSecond);
}

}  // namespace

int team_size(const Program& program, int threads) {
  if (threads <= 1 || needs_device(program)) return threads;
  const double doublings = std::bit_width(static_cast<unsigned>(threads - 1)),
               meeting = kMeetingSeconds * (1 + doublings), share = 1 - 1.0 / threads;
  double all = 0, saved = 0;
  for (const ScheduleEntry& entry : program.schedule) {
    for (const Step& step : program.segments[static_cast<size_t>(entry.segment)].steps) {
      if (step.kind != StepKind::kKernel && step.kind != StepKind::kLibrary) continue;
      const double alone = seconds_alone(step);
      all += alone;
      saved += std::max(0.0, alone * share - meeting);
    }
  }
  return saved < kWorthwhile * all ? 1 : threads;
}

TeamChoice::TeamChoice(int most) : settle_(kSettled) {
  for (int size = 1; size < most; size *= 2) sizes_.push_back(size);
  sizes_.push_back(most);
  seconds_.resize(sizes_.size());
  for (size_t k = 0; k < sizes_.size(); ++k) to_try_.push_back(k);
  try_next();
}

void TeamChoice::try_next() {
  trying_ = !to_try_.empty();
  at_ = best_;
  if (trying_) {
    at_ = to_try_.back();
    to_try_.pop_back();
  }
  steps_ = 0, sum_ = 0;
}

void TeamChoice::took(double seconds) {
  if (steps_++ >= kFirst) sum_ += seconds;
  settled_ += trying_ ? 0 : 1;
  if (steps_ < kStretch) return;
  const double mean = sum_ / static_cast<double>(kStretch - kFirst);
  if (trying_) {
    seconds_[at_] = mean;
    if (to_try_.empty()) {
      best_ = static_cast<size_t>(std::min_element(seconds_.begin(), seconds_.end()) - seconds_.begin());
      settled_ = 0, slower_ = 0;
    }
    return try_next();
  }
  slower_ = mean > kSlower * seconds_[best_] ? slower_ + 1 : 0;
  if (slower_ >= kSlowStretches) {
    for (size_t k = 0; k < sizes_.size(); ++k) to_try_.push_back(k);
    settle_ = kSettled;
  } else if (settled_ >= settle_) {
    settle_ = std::min(2 * settle_, kMostSettled);
    seconds_[best_] = mean;
    if (best_ > 0) to_try_.push_back(best_ - 1);
    if (best_ + 1 < sizes_.size()) to_try_.push_back(best_ + 1);
  }
  try_next();
}

}  // namespace partita::runtime
