// Starts the ranks of a run as processes of this host, watches them, and starts them again when that may help.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/launch/restarts.h"

namespace partita::runtime {

struct LocalJob {
  std::vector<std::string> command;  // program and arguments, the same for all ranks
  int ranks = 0;           // processes with a rank each, which find one another over TCP; 0: one process, no rank
  RestartLimits restarts;  // after an end worth a retry: a signal, or an exit code of 128 and above
  std::string records;     // folder of their flight records; empty: in memory alone
  std::vector<std::string> resume;            // arguments to add when it starts again
  const std::atomic<bool>* stop = nullptr;    // when it is set, the processes get SIGTERM
  std::atomic<bool>* save = nullptr;          // and SIGUSR1
  std::vector<int> plans = {};                // fewer ranks that the program can go on with, the most first
  std::vector<std::string> environment = {};  // "NAME=value", in addition to this process's
  bool aside = false;  // gives way to others: to the last when the processors or memory are short; tells all on stderr
};

// A rank that is the root cause of so many ends in a row, none of them after 10 minutes, has lost what it runs on for
// good: where there is a plan for fewer ranks, those go on without its device.
inline constexpr int kLostForGood = 3;

// Ok, or how the first process that failed ended: the status of its exit code (base/exit_code.h). Where a rank was
// lost, it names the root cause, and stderr has had who followed; else the rank has told why itself. No process
// outlives the call: the others get 2 s to end by themselves. Nor does one outlive this process, however that ends. To
// be called from a thread that lives as long as the process, as main's.
absl::Status run_job(LocalJob job);

}  // namespace partita::runtime
