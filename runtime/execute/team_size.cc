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

}  // namespace partita::runtime
