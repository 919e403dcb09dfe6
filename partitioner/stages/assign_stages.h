// Which stage of a pipeline each node of a rank's graph runs in.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita {

inline constexpr int kAnywhere = -1;  // cheap and made of data, constants or states alone: who reads it makes it
inline constexpr int kPartial = -2;   // a sum whose terms lie on several stages

struct StageAssignment {
  int stages = 1;
  std::vector<int> node;             // per node: its stage, kAnywhere or kPartial
  std::vector<int> state;            // per state: the stage that owns it; kAnywhere: every stage that reads it
  std::vector<std::set<int>> terms;  // per value that is partial: stages with a term
  std::vector<int> home;  // per value that is partial: the stage that gets the terms, or kAnywhere for a scalar,
                          // which is summed over all stages
};

// Per operand of a node that `partial` leads to: whether the node is linear in it jointly with operand `partial`, so
// that it counts once in a sum of terms. Empty where a sum does not go through the node.
std::vector<bool> summed_operands(const Graph& graph, const Node& node, size_t partial);

// Forward nodes are cut into `stages` runs of nearly equal work, between blocks where the graph has enough, and
// where little crosses; nothing flows back to an earlier stage. A gradient runs where its forward node does, or earlier
// where what it needs comes from there. A parameter belongs to the first stage that reads it, and with it all that its
// update reads and writes; a running statistic to the stage of its norm. Gradients of a parameter that several stages
// read stay apart until all micro-batches are summed, and so do sums of scalars over all parameters (a gradient's
// norm): they are partial.
//
// With `cuts`, one glob for each stage but the first, a stage begins at the first such node that reads a parameter, or
// comes from an ONNX node, of a name that the glob matches.
//
// Where forward nodes are marked with stages (Node::chunk is the stage + 1), they are cut so, and the rest follows.
//
// What crosses stages (OpDef::crosses_stages) runs in the one that it names.
//
// `graph` is one that localize() made, or is to be handed to it; `owners` fixes the owners of states by name.
// `ordered`: sums have the order of the graph's nodes (train.yaml's reproducible), and none is partial.
//
// InvalidArgument where there are fewer parts than stages, or a glob matches nothing or leaves nothing to a stage;
// where an ordered sum has terms on several stages with each micro-batch.
using StateOwners = std::map<std::string, int>;
absl::StatusOr<StageAssignment> assign_stages(const Graph& graph, int64_t stages, const StateOwners& owners,
                                              const std::vector<std::string>& cuts = {}, bool ordered = false);

}  // namespace partita
