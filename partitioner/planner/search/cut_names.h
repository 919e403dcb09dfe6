// Where the stages of a layout begin, by names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {

class CutNames {
 public:
  explicit CutNames(const CostModel& model) : model_(model) {}

  // The layout with the names of its cuts, so that what is compiled from a plan has the stages that were priced. As it
  // is where it has one stage or names, and where a stage begins with no name of its own.
  Layout named(Layout layout);

 private:
  const CostModel& model_;
  std::map<std::vector<int>, std::vector<std::string>> names_;  // of cuts
};

}  // namespace partita
