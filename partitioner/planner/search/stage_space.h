// Stages that differ: each section of a cluster (a group of its devices, or one of two sections of a uniform cluster)
// holds consecutive stages with axes of their own. Which combinations there are, and which could be faster than a time.
#pragma once

#include <array>
#include <vector>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/space/layout_space.h"

namespace partita {

// One combination: what each section's stages look like, and what all stages share.
struct StageChoice {
  double bound = 0;  // seconds of a step at least
  int32_t split = 0;
  std::array<uint16_t, Space::kMostSections> of_section{};
  int64_t samples = 1;  // of a micro-batch
  bool sequence_parallel = false;
  RecomputeMode recompute = RecomputeMode::kNone;
};

class StageSpace {
 public:
  StageSpace(CostModel& model, const Space& space);

  // Combinations with a bound below `seconds`, ascending. Where there are too many to keep, those with the smallest
  // bounds; dropped_bound() is then the smallest of the others.
  std::vector<StageChoice> below(double seconds);
  double dropped_bound() const { return dropped_; }
  Layout layout(const StageChoice& choice) const;

 private:
  // Stages of one section.
  struct Way {
    Layout::StageAxes axes;
    int64_t stages = 1;
  };
  struct Rate {
    uint16_t way;
    double rate;  // all units of the heaviest kind, so many times a second, by all stages of the section
  };
  using Rates = std::vector<std::vector<Rate>>;  // of each section, fastest first

  std::vector<Way> ways(int64_t devices) const;
  Rates rates(const StageChoice& shared);
  void combine(StageChoice choice, const Rates& rates, size_t section, double so_far, int64_t stages, double seconds);
  void keep(const StageChoice& choice);

  CostModel& model_;
  const Space& space_;
  std::vector<std::vector<std::vector<Way>>> ways_;  // by split and section
  std::vector<StageChoice> kept_;
  double dropped_;
};

}  // namespace partita
