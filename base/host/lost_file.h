// What happens to a process whose file, mapped into memory, is gone when it is read: somebody truncated it, or its disk
// or server failed. The system tells by SIGBUS, which would end the process without a word.
#pragma once

#include <signal.h>

#include <cstddef>
#include <string>

namespace partita {

struct LostFile {
  const char* path;
  size_t at, bytes;  // where it was read; that it had when it was opened
};

// A mapping of the file at `path`, until it is forgotten. Of those beyond 4,096 at a time nothing is known.
void remember_mapping(const void* begin, size_t bytes, const std::string& path);
void forget_mapping(const void* begin);

// From here on reading what is gone of a mapping calls `end`, which must not return. Another SIGBUS ends the process as
// ever. `end` runs in a signal handler of the thread that read: nobody reads a mapping while holding a lock that it
// needs.
void end_on_lost_files(void (*end)(const LostFile& file));
// For another handler of SIGBUS, which took the place of the one above: returns where it is no lost file's.
void end_if_lost_file(const siginfo_t& fault);

}  // namespace partita
