// What makes a problem fit, as a user types it: flags of plan, or lines of the cluster file.
#pragma once

#include <string>
#include <vector>

#include "partitioner/planner/search/search.h"

namespace partita {

struct Fix {
  std::string change;  // as it is typed: "--pin zero=3", "in the cluster file: nodes: 2"
  Candidate candidate;
  double price_per_hour = 0;   // of all devices; 0: not known
  bool same_hardware = false;  // as the problem's

  double price_of_step() const { return price_per_hour / 3600 * candidate.prediction.step_seconds; }
};
// Changes that were searched and fit: those of the layout first, then other hardware, cheapest step first.
std::vector<Fix> find_fixes(const Problem& problem, const SearchOptions& options, const ProfileLibrary& library);

}  // namespace partita
