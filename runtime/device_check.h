// What programs that check a device's kernels share: their command line and what they print.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "nlohmann/json.hpp"

namespace partita::runtime {

// A case's result, one line of JSON.
inline void print(const nlohmann::ordered_json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

// `NAME [SECONDS] [CASE]`: what `run_all` makes of the cases whose names have CASE in them, in so many seconds; 2 where
// the command line is none of that.
inline int run_check(const char* name, int argc, char** argv, int (*run_all)(double seconds, const std::string& part)) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 25;
  if (argc > 3 || !(seconds > 0 && seconds < 1e6)) {
    std::fprintf(stderr, "usage: %s [SECONDS] [CASE]\n", name);
    return 2;
  }
  return run_all(seconds, argc > 2 ? argv[2] : "");
}

}  // namespace partita::runtime
