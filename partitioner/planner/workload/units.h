// A training graph cut at its blocks into units, and what its values are to the planner.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/graph/dependence.h"

namespace partita {

// Block b is unit 2b + 1; what stands before, between and after blocks has the even numbers.
struct GraphUnits {
  // Of one unit, in the graph's order.
  struct Unit {
    std::vector<NodeId> nodes;                // forward and backward ones that depend on data
    std::vector<ValueId> parameters, frozen;  // that it is the first to read: a unit owns these
    std::vector<ValueId> read;                // parameters and frozen states that it reads, owned or not
  };
  // Of one value.
  struct Value {
    bool parameter = false;  // is a trained state
    bool data = false;       // depends on the batch
    bool learned = false;    // has a gradient (Dependence)
    bool saved = false;      // backward reads it, or a view of it
    int unit = 0;            // that makes it
    ValueId source = 0;      // the value that it is a view of; else itself
    std::vector<NodeId> readers;
  };

  std::vector<Unit> units;
  std::vector<Value> values;             // by ValueId
  std::vector<int> of_node;              // by NodeId: its unit; -1: neither forward nor backward
  std::map<ValueId, std::string> names;  // of parameters and of frozen weights of a float type

  const Value& value(ValueId v) const { return values[static_cast<size_t>(v)]; }
  // The parameters and frozen weights that `v` is made of without data: itself, or what is transposed, cast, ….
  std::vector<ValueId> states_behind(const Graph& graph, ValueId v) const;
};

// `graph`: a training graph with tagged blocks.
GraphUnits cut_into_units(const Graph& graph, const Dependence& dependence);

}  // namespace partita
