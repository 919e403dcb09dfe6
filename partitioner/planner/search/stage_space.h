// Stages that differ: each part of a cluster (a group of its devices, or one of two parts of a uniform cluster) holds
// consecutive stages with axes of their own. Which combinations there are, and which could be faster than a time.
#pragma once

#include <array>
#include <vector>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/space/layout_space.h"

namespace partita {

// One combination: what each part's stages look like, and what all stages share.
struct StageChoice {
  double bound = 0;  // seconds of a step at least
  int32_t split = 0;
  std::array<uint16_t, Space::kMostParts> of_part{};
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
  // Stages of one part.
  struct Part {
    Layout::StageAxes axes;
    int64_t stages = 1;
  };
  struct Rate {
    uint16_t part;
    double rate;  // of the heaviest kind of unit that all stages of the part get through in a second, as a share of all
  };
  using Rates = std::vector<std::vector<Rate>>;  // of each part, fastest first

  std::vector<Part> ways(int64_t devices) const;
  Rates rates(const StageChoice& shared);
  void combine(StageChoice choice, const Rates& rates, size_t part, double so_far, int64_t stages, double seconds);
  void keep(const StageChoice& choice);

  CostModel& model_;
  const Space& space_;
  std::vector<std::vector<std::vector<Part>>> ways_;  // by split and part
  std::vector<StageChoice> kept_;
  double dropped_;
};

}  // namespace partita
