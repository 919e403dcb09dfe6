// Looks for the first value that went wrong in a run that diverged: a process of its own takes the steps again, from
// the last good state on, and looks at every value (`partita compare --nonfinite`).
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/run_flags.h"

namespace partita::runtime {

class BadValueSearch {
 public:
  // `program`: a `partita`; "": none is at hand, and the command is told in place of its result. `plan`: the bundle, or
  // the one within it that is run. `stop`: ends a search early; may be null.
  BadValueSearch(std::string program, std::string plan, RunFlags flags, const std::atomic<bool>* stop);
  // Gives up one that is under way.
  ~BadValueSearch();

  // After a run that stopped: from the newest good checkpoint, or from where it began. Stderr has what is found.
  // Nothing where one beside the run has been started.
  void after_stop();
  // Beside a run that goes on, of the step that it was taken back for. One at a time; `busy`: none, as the run has what
  // it needs (a device).
  void beside(const Rollback& rollback, bool busy);
  // Until one that is under way is over, --find-bad-value seconds after its start at the latest.
  void wait();

 private:
  std::vector<std::string> command(const std::string& checkpoint, std::optional<int64_t> steps) const;
  // `held`: a checkpoint that the run may remove meanwhile; empty: none.
  void start(std::vector<std::string> command, const std::string& held = "");
  static void tell(std::vector<std::string> command);

  const std::string program_, plan_;
  const RunFlags flags_;
  const std::atomic<bool>* const stopped_;
  std::atomic<bool> stop_ = false, done_ = true;
  std::thread thread_;
};

}  // namespace partita::runtime
