// Where a rank's time goes, step by step.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/program/program.h"

namespace partita::runtime {

// Where the trace of a rank is, if rank 0's is `path`: beside "run.json" there are "run.rank1.json" and so on. Empty
// for other ranks where the path does not end so.
std::string trace_of_rank(const std::string& path, int64_t rank);

class StepProfile {
 public:
  using Clock = std::chrono::steady_clock;

  // `events`: how many executed steps are kept for the trace; later ones are only summed.
  StepProfile(const Program& program, int rank, size_t events);

  void add(const Step& step, const ScheduleEntry& entry, Clock::time_point begin, Clock::time_point end);

  double seconds() const;
  // Two tables: share of time by kind of step (communication in waits is what was not hidden), and the hottest steps
  // with their ONNX origins.
  std::string table(size_t hottest = 25) const;
  // Chrome's trace event format: one process per rank; opens in Perfetto. "otherData" says the run's model, ranks and
  // samples of a step.
  std::string chrome_trace() const;

 private:
  struct Total {
    double seconds = 0;
    int64_t calls = 0;
  };
  struct Event {
    uint32_t step;
    int32_t micro_batch, slot;
    int64_t begin_ns, duration_ns;
  };
  std::string label(const Step& step) const;

  const Program& program_;
  int rank_;
  size_t max_events_;
  Clock::time_point start_;
  std::vector<const Step*> steps_;
  std::vector<Segment> segments_;  // of each step
  std::vector<Total> totals_;
  std::vector<Event> events_;
};

}  // namespace partita::runtime
