// Starts the ranks of a run as processes of this host, watches them, and starts them again when that may help.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace partita::runtime {

struct LocalJob {
  std::vector<std::string> command;  // program and arguments, the same for all ranks
  int ranks = 0;         // processes with a rank each, which find one another over TCP; 0: one process, no rank
  int max_restarts = 0;  // after an end worth a retry: a signal, or an exit code of 128 and above
  std::vector<std::string> resume;          // arguments to add when it starts again
  const std::atomic<bool>* stop = nullptr;  // SIGTERM is passed on to the processes
};

// Ok, or how the first process that failed ended: its own code below 128 as the status that has it (2 InvalidArgument,
// 3 ResourceExhausted, …; it has told why itself), Unavailable for those worth a retry, Cancelled when told to stop. No
// process outlives the call: the others get 10 s to end by themselves.
absl::Status run_job(const LocalJob& job);

}  // namespace partita::runtime
