// A run on one screen of a terminal.
#pragma once

#include <string>

#include "tools/watch/run_history.h"

namespace partita {

struct ScreenSize {
  int columns = 80, rows = 24;
};

// Lines of at most so many columns: the newest numbers, the curve of losses, and each rank's own time as a shade.
// `note`: a line below the title, empty for none. `color`: with the terminal's codes.
std::string draw_run(const RunHistory& run, const std::string& title, const std::string& note, ScreenSize size,
                     bool color);

}  // namespace partita
