// The best plan over cluster sizes, and under changes of the hardware.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partitioner/planner/search/search.h"

namespace partita {

struct SweepRow {
  int64_t devices = 0;
  std::optional<Candidate> best;  // none: nothing fits
  double missing_bytes = 0;
  double days = 0, dollars = 0;  // for the tokens asked for; 0 where there is no price
  double efficiency = 0;         // throughput per device over the best row's
  double goodput = 1;            // share of the time that is training, where failures count
  std::string note;              // why there is no plan
};

struct Sweep {
  static constexpr double kKnee = 0.8;  // of the best row's efficiency
  std::vector<SweepRow> rows;
  std::optional<size_t> knee;  // the last row with kKnee or more, where one after it has less
  double band = 0.20;          // relative error of a time that 9 of 10 published rows keep (docs/planning.md)
  bool failures = false;       // counted
  std::string assumed;         // what the cluster does not say and larger sizes need; empty: nothing
};

// Sizes that the cluster cannot have (whole nodes only) get a note; InvalidArgument where it can have none. `tokens` 0:
// no days or dollars. `failures`: throughput, days and dollars are those of a run that machines fail in
// (failing_run.h), with its best checkpoint interval; without tokens, of 30 days.
absl::StatusOr<Sweep> sweep(const Problem& problem, const SearchOptions& options, const std::vector<int64_t>& devices,
                            double tokens, bool failures = false);
// "8..1024" doubles, "8,16,24" lists.
absl::StatusOr<std::vector<int64_t>> parse_sizes(const std::string& text);

struct WhatIf {
  std::string change;
  std::optional<Candidate> candidate;
  std::string note;  // why there is none
};
// The plan under each change of the hardware that the cluster has something of, searched anew; the first is without
// any.
std::vector<WhatIf> what_if(const Problem& problem, const SearchOptions& options);

}  // namespace partita
