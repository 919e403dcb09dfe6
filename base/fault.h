// How a program ends that cannot go on: with an exit code and one line, never with a signal.
#pragma once

#include <string_view>

namespace partita {

// From here on an exception that nobody catches (of any thread, or out of a destructor) ends the process as
// stop_with_fault does. For the start of main.
void exit_on_uncaught();

// One line on standard error, then the process ends at once: code 3 where memory ran out, else 1.
[[noreturn]] void stop_with_fault(std::string_view message, bool out_of_memory = false);

}  // namespace partita
