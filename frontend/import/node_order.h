// The order in which a graph's nodes can be imported.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/onnx/onnx_model.h"

namespace partita {

// Indices of `nodes` so that every name is made before it is used: the given order where it is sound (ONNX asks for
// that), else sorted. `outside`: names that are defined already. InvalidArgument for a name that two nodes make, one
// that nobody makes, and for a cycle (naming its nodes).
absl::StatusOr<std::vector<int>> node_order(const std::vector<OnnxNode>& nodes,
                                            const std::function<bool(const std::string&)>& outside);

// "Op 'name'"; for a node without a name, its first output's.
std::string node_title(const OnnxNode& node);

}  // namespace partita
