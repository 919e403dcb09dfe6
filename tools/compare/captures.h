// What the steps of a bundle's ranks read and write, kept while they run: buffers are used again by later steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
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

// Of all ranks of one bundle, one training step at a time: ranks wait before the next until that one has been looked
// at. Values are those that steps say they read and write (Claim); constants, temporaries and what accumulates before
// it is complete are left out.
class Captures : public runtime::StepObserver {
 public:
  // The first `unseen` steps are not kept, and nobody looks at them.
  explicit Captures(const verifier::ProgramSet& set, int64_t unseen = 0);

  void begin(const runtime::Executor& executor) override;
  absl::Status before(const runtime::Executor& executor, const runtime::Step& step,
                      const runtime::ScheduleEntry& entry) override;
  absl::Status after(const runtime::Executor& executor, const runtime::Step& step,
                     const runtime::ScheduleEntry& entry) override;

  // For who looks at them, on a thread of its own. True when all ranks have ended a step, false when the run is over.
  bool wait_for_step();
  // Ranks go on with the next step, and what is kept of this one is forgotten; or they end with an error.
  void go_on();
  void cancel();
  // For the thread that runs the ranks, at its end; `complete`: all of them have ended their last step.
  void end(bool complete);

  int64_t ranks() const { return static_cast<int64_t>(ranks_.size()); }
  size_t stage_of(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].stage; }
  const std::vector<int64_t>& coordinates(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].coordinates; }
  const RankCaptures& of(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].values; }
  const std::vector<Misread>& misreads(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].misreads; }
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
    RankCaptures values = {};
    std::vector<Misread> misreads = {};
    int64_t begun = 0;  // steps
  };
  absl::Status write(const runtime::Executor& executor, const runtime::Step& step, const runtime::ScheduleEntry& entry);
  absl::Status write_joined(const runtime::Executor& executor, const runtime::Step& step,
                            const runtime::ScheduleEntry& entry);
  void keep(Rank& rank, int value, const runtime::ScheduleEntry& entry, std::span<const std::byte> bytes,
            int64_t step) const;

  bool is_seen(const Rank& rank) const { return rank.begun > unseen_; }

  const verifier::ProgramSet& set_;
  const int64_t unseen_;
  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t waiting_ = 0;    // ranks that have ended the step
  int64_t looked_at_ = 0;  // steps
  bool ended_ = false;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace partita
