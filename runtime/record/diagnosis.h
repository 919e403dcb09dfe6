// Why a run ended: the first cause, and who followed, from the flight records of its ranks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/record/flight_view.h"

namespace partita::runtime {

// What who started the ranks knows besides.
struct KnownEnd {
  int rank = 0;
  int signal = 0;              // that ended it; 0: none
  int code = 0;                // else its exit code
  bool by_supervisor = false;  // which ended what was left
};

enum class FateKind {
  kRuns,
  kEndedWell,
  kTold,      // told to stop
  kFollowed,  // another rank's end
  kFailed,    // by itself, saying why
  kCrashed,   // a signal of its own making
  kKilled,    // without a word
  kSilent,    // stopped: its process is there and does nothing
  kHangs,     // at something that does not end, while others wait for it
  kCutOff,    // it and the ranks of other hosts waited for each other
};

struct RankFate {
  int rank = 0;
  std::string host;
  FateKind kind = FateKind::kRuns;
  int64_t time = 0;   // when it began
  std::string cause;  // "was killed by signal 9 (Killed)"
  std::string where;  // FlightView::where()
  std::vector<int> waits_for;
};

struct Diagnosis {
  std::optional<RankFate> root;  // none: all ended well, or run
  std::vector<int> with;         // ranks of the root's host that shared its fate: all that it has, where it has any
  std::vector<RankFate> others;  // by rank
  std::vector<int> awaited;      // without a root: ranks that others waited for, and of which no record is here

  bool together = false;  // without a root: all ranks were ended at one moment

  // "rank 1 on host 'node7' was killed by signal 9 (Killed); training step 42, in …".
  std::string root_text() const;
  // "rank 2: followed: lost rank 1; training step 42, in …, waiting for rank 1".
  std::string other_text(const RankFate& fate) const;
};

// How much of the run there is still.
enum class RunState {
  kMayRun,  // ranks whose processes are of other hosts are taken for lost where their heartbeat is older than that of
            // the others' by more than some seconds
  kIsOver,  // no rank is left, wherever it was
};

// `now`: by the clock of the records' times.
Diagnosis diagnose(std::span<const FlightView> ranks, std::span<const KnownEnd> known, int64_t now,
                   RunState state = RunState::kMayRun);

}  // namespace partita::runtime
