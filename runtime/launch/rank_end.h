// What a rank says and leaves when it ends.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/rank_watch.h"

namespace partita::runtime {

// On `console` and in the log that stderr is, where it is another; nothing of an empty text.
void say(std::FILE* console, const std::string& text);

// Writes the end into the record.
void record_end(FlightRecorder& recorder, const absl::Status& status);

// Writes into the record that this process was stopped, where its last heartbeat is old and others gave up meanwhile: a
// launcher that ends a stopped rank lets it go on first.
void record_stop(RankWatch& watch);

// Of a rank that is a process: says on `console` why it ended. Its own failure with where it was; that it followed
// another's, and, from one rank of those that may still speak, the root cause. A supervisor of ours says both itself.
// Writes torchrun's error file. The exit code; of a follower under another's launcher, that of the rank it followed.
int tell_end(const absl::Status& status, const LaunchEnvironment& launch, RankWatch& watch, std::FILE* console);

// Of ranks that are threads: says on stderr who followed whom where a rank was lost or hung; the status then names the
// root cause.
absl::Status with_root_cause(const absl::Status& status, const RankWatch& watch);

// Ends this process, whose rank does not come back from what it is at, as its record says.
[[noreturn]] void end_process(const FlightRecorder& recorder, const absl::Status& why);

// From here on what this process says goes into DIR/rank-N.log. Where it went before, for what should be seen there as
// well; stays open. Errors: of files.
absl::StatusOr<std::FILE*> log_output(const std::string& folder, int rank);

}  // namespace partita::runtime
