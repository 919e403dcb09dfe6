// Processes of this host, as /proc shows them.
#pragma once

#include <cstdint>

namespace partita::runtime {

// When a process started, in the kernel's ticks; 0 where there is none of that number.
int64_t process_start(int64_t process);

// Its state's letter as in /proc ('T': stopped), or 0 where it has ended, or is another one of the same number.
char process_state(int64_t process, int64_t start);

// Equal for two processes that know each other by number: of one host, in one namespace.
uint64_t host_key();

}  // namespace partita::runtime
