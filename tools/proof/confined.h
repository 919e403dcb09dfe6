// Work in a process of its own that can harm nothing: for machine code that nobody has vouched for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace partita {

struct Confinement {
  std::string folder;        // the one place that may be written to, and the work's TMPDIR
  int64_t memory_bytes = 0;  // of the process's own, at most
  int64_t seconds = 0;       // until it is ended
};

struct ConfinedResult {
  std::string text;                  // what the work returned
  std::vector<std::string> held;     // "no network (a namespace of its own)", …: what this system could hold it to
  std::vector<std::string> lacking;  // and what it could not, with the reason
};

// Runs `work` in a child process without network, without other programs, without write access outside the folder, with
// limits on memory and time, as far as the system allows (namespaces, seccomp, Landlock). The work's status comes back;
// Aborted where a signal ended it, ResourceExhausted after the time. Called while this process has one thread.
absl::StatusOr<ConfinedResult> run_confined(const Confinement& limits,
                                            absl::FunctionRef<absl::StatusOr<std::string>()> work);

}  // namespace partita
