// Values that units make and later units read: what stages of a pipeline may send each other.
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "partitioner/planner/workload/units.h"

namespace partita {

// A float value that has a gradient.
struct CrossingValue {
  int maker = 0;                   // the unit that makes it
  std::vector<int> readers;        // later units, in order
  double elements = 0, bytes = 0;  // of a sample, as the graph has it
};

// Of the forward part of a graph that computes `samples`, in the order of its nodes. `place`: what a unit of `units` is
// called, by its number there.
std::vector<CrossingValue> crossing_values(const Graph& graph, const GraphUnits& units, const std::vector<int>& place,
                                           double samples);

}  // namespace partita
