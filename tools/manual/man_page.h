// Manual pages for man(1), of a command line's own definitions.
#pragma once

#include <string>

#include "tools/manual/command_tree.h"

namespace partita {

// The page of one command, in the man macros of roff; `version` ("partita 0.1.0") stands in its last line. Commands
// below it have pages of their own, named by their paths: partita-model-gpt(1).
std::string man_page(const Command& command, const std::string& version);

}  // namespace partita
