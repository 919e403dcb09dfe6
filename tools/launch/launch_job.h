// What is to be started, whoever starts it.
#pragma once

#include <string>
#include <vector>

#include "runtime/launch/restarts.h"

namespace partita {

struct LaunchJob {
  std::vector<std::string> command;  // a rank's executable, by its whole path, and its flags
  std::vector<std::string> resume;   // flags to add from the second start on
  int ranks = 1;
  std::vector<int> plans;   // the numbers of ranks that the bundle has plans for, up to `ranks`, the largest first
  int nodes = 1;            // hosts with equally many ranks each
  std::string folder;       // to run in, on each host
  std::string secret_file;  // "": none is needed, or it is in the environment
  int port = 29500;
  std::string checkpoints;  // where the ranks keep them; empty: nowhere
  std::string records;      // and their flight records
  runtime::RestartLimits restarts;
  double ask_seconds = 60;  // from one look for more hosts to the next
};

}  // namespace partita
