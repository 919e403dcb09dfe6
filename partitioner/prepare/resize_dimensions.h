// A graph as its exporter would have written it for other sizes: fewer samples, another capacity of the experts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita {

// A size of the model that becomes another, wherever it stands: `from` > 1 elements become `to`.
struct SizeChange {
  std::string name;  // of what is counted, for messages: "samples"
  int64_t from = 2;
  int64_t to = 1;
};

// What one operand of a node is read as instead: a scalar, or a tensor whose last dimension has a change's new size.
struct NewOperand {
  Literal literal;
  int change = -1;  // index into the changes; -1: none of its dimensions
};

struct Resizing {
  std::vector<SizeChange> changes;
  int inputs = -1;  // the change that dimension 0 of every data input takes part in; -1: none
  std::map<std::pair<NodeId, size_t>, NewOperand> operands;
};

// Follows the changed sizes from inputs and new operands through the formulas of the ops. A sum over changed elements
// times 1 / their number is a mean, and stays one; every other number in the graph is taken as it is. What is computed
// from no input has to be the same for all elements of a changed size. InvalidArgument with the ONNX node where a size
// cannot be followed.
absl::StatusOr<Graph> resize_dimensions(const Graph& graph, const Resizing& resizing);

}  // namespace partita
