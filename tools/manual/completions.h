// Completions for shells, of a command line's own definitions: commands, options, and the values of those that take one
// of a few words. Other values are completed as file names.
#pragma once

#include <string>

#include "tools/manual/command_tree.h"

namespace partita {

// Scripts for the command `root.path[0]`, to be sourced or put where the shell looks for completions.
std::string bash_completion(const Command& root);
std::string zsh_completion(const Command& root);
std::string fish_completion(const Command& root);

}  // namespace partita
