// What the steps of a bundle's ranks read and write, kept while they run: buffers are used again by later steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "runtime/execute/step_observer.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

// What a value of a rank's graph is there once for, in place of a micro-batch.
inline constexpr int64_t kWholeStep = -1;

// A value of a rank's graph with composites expanded, no view, as it lay in memory.
struct Capture {
  std::vector<std::byte> bytes;
  int64_t step = -1;  // of the program: what wrote it, or, where nobody did, what read it first
  bool written = false;
};
// By value and micro-batch, or kWholeStep.
using RankCaptures = std::map<std::pair<int, int64_t>, Capture>;

// A step that read other bytes than had been written for the value that it says it reads.
struct Misread {
  int64_t step = 0;  // of the program
  size_t operand = 0;
  int value = 0;
  int64_t micro_batch = kWholeStep;
};

// Of all ranks of one bundle, every training step. Values are those that steps say they read and write (Claim);
// constants, temporaries and what accumulates before it is complete are left out.
class Captures : public runtime::StepObserver {
 public:
  explicit Captures(const verifier::ProgramSet& set);

  void begin(const runtime::Executor& executor) override;
  absl::Status before(const runtime::Executor& executor, const runtime::Step& step,
                      const runtime::ScheduleEntry& entry) override;
  absl::Status after(const runtime::Executor& executor, const runtime::Step& step,
                     const runtime::ScheduleEntry& entry) override;

  int64_t ranks() const { return static_cast<int64_t>(ranks_.size()); }
  int64_t steps() const { return static_cast<int64_t>(ranks_.front().steps.size()); }
  size_t stage_of(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].stage; }
  const std::vector<int64_t>& coordinates(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].coordinates; }
  const RankCaptures& of(int64_t rank, int64_t step) const {
    return ranks_[static_cast<size_t>(rank)].steps[static_cast<size_t>(step)];
  }
  const std::vector<Misread>& misreads(int64_t rank, int64_t step) const {
    return ranks_[static_cast<size_t>(rank)].misreads[static_cast<size_t>(step)];
  }
  // The micro-batch that a value is kept under in a step that runs for this one.
  int64_t kept_under(size_t stage, int value, int64_t micro_batch) const;

 private:
  enum class Kind : uint8_t { kNone, kOnce, kEach };
  struct Stage {
    std::vector<Kind> kinds;                              // per value
    std::map<int64_t, const runtime::Step*> starts = {};  // of collectives, by id
  };
  struct Rank {
    size_t stage = 0;
    std::vector<int64_t> coordinates;
    std::vector<RankCaptures> steps;
    std::vector<std::vector<Misread>> misreads;
  };
  absl::Status write(const runtime::Executor& executor, const runtime::Step& step, const runtime::ScheduleEntry& entry);
  absl::Status write_joined(const runtime::Executor& executor, const runtime::Step& step,
                            const runtime::ScheduleEntry& entry);
  void keep(Rank& rank, int value, const runtime::ScheduleEntry& entry, std::span<const std::byte> bytes,
            int64_t step) const;

  const verifier::ProgramSet& set_;
  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;
};

}  // namespace partita
