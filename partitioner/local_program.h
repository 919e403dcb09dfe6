// What the one transformation leaves: one graph on local shapes for all ranks that differ in coordinates alone, and
// where its inputs, states and outputs lie on the mesh. Communication is explicit: collective nodes, in the one order
// of communication, which is the order of the nodes.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ir/mesh.h"
#include "ir/sharding.h"

namespace partita {

// A logical tensor's whole shape and how it is split.
struct PlacedTensor {
  Shape logical;
  Sharding sharding;
  bool host = false;  // a state that is kept in host memory
};

struct LocalProgram {
  Graph graph;  // types are local
  Mesh mesh;
  std::vector<PlacedTensor> inputs;   // one for each graph.inputs
  std::vector<PlacedTensor> states;   // one for each graph.states
  std::vector<PlacedTensor> outputs;  // one for each graph.outputs
  int64_t micro_batches = 1;
  int64_t samples_per_step = 0;
};

}  // namespace partita
