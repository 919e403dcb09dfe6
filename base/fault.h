// How a program ends that cannot go on: with an exit code and one line, never with a signal.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "base/host/lost_file.h"

namespace partita {

// Of the exception that is being handled: ResourceExhausted where there is no memory or no thread, else Internal with
// its words.
absl::Status status_of_exception();

// DataLoss, naming the file.
absl::Status lost_file_error(const LostFile& file);

// From here on an exception that nobody catches (of any thread, or out of a destructor) ends the process as
// stop_with_fault does, and a write past the limit on a file's size is an error as on a full disk; a file that
// is truncated while it is read is told (lost_file_error(), code 2). For the start of main.
void exit_on_uncaught();

// One line on standard error, then the process ends at once: code 3 where memory or threads ran out, else 1.
[[noreturn]] void stop_with_fault(std::string_view message, bool out_of_resources = false);

}  // namespace partita
