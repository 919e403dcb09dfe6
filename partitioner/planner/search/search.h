// Finds the fastest layout that fits: every layout of the space is priced or shown by a bound to be no better.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/planner/search/candidate.h"

namespace partita {

// Bytes of device memory beside the reserve that each stage's program takes, as the compiler allocates it. Errors, but
// for internal ones, say why it refuses the layout.
using AllocateProgram = std::function<absl::StatusOr<std::vector<double>>(const Layout&)>;

struct SearchOptions {
  PinRecipe pin;
  RecomputeMode recompute = RecomputeMode::kAuto;
  std::optional<int64_t> micro;
  double time_limit = 0;  // seconds, once something fits; 0: none
  bool gives_up = false;  // then, also where nothing was found
  size_t keep = 24;       // runners-up, one for each family of axes
  // The plan is allocated before it is offered: where its program does not fit, or is refused, the next one is taken.
  // Empty: the cost model's memory alone decides.
  AllocateProgram allocate;
  int64_t most_allocated = 0;  // layouts, then none is found; 0: any number
};

struct SearchResult {
  std::optional<Candidate> best;            // the fastest that fits
  std::optional<Candidate> nearest;         // of those that do not fit: the one with fewest bytes missing
  std::vector<Candidate> others;            // best of each other family (axes and ZeRO stage), fastest first
  std::vector<std::string> contradictions;  // why layouts of the space cannot be, each once
  int64_t considered = 0, bounded = 0, unfit = 0, allocated = 0;
  double gap = 0;  // (best - smallest bound of what was not looked at) / best; 0: proved optimal in this model
  double seconds = 0;
};

// InvalidArgument where pins contradict the problem so that no layout is left.
absl::StatusOr<SearchResult> search(CostModel& model, const SearchOptions& options);

}  // namespace partita
