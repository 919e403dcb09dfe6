// A command line as data, read off its CLI11 definitions: what manual pages and completions are made from.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"

namespace partita {

// An option or a positional argument.
struct Argument {
  std::vector<std::string> names;  // "-o", "--output"; of a positional its one name
  std::string value;               // what it takes, "TEXT" or "INT"; empty: a flag
  std::vector<std::string> words;  // the only values that it takes; empty: any
  std::string description, default_value;
  bool required = false, repeated = false, optional_value = false;
};

struct Command {
  std::vector<std::string> path;  // "partita", "model", "gpt"
  std::string description, footer;
  std::vector<Argument> options, positionals;
  std::vector<Command> commands;
};

// Hidden commands and options (those of an empty group) are left out.
Command describe(const CLI::App& app);

// `command` and those below it, each before its own.
std::vector<const Command*> all_commands(const Command& command);

// The path with `separator` between its words.
std::string path_text(const Command& command, const char* separator);

}  // namespace partita
