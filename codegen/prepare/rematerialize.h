// Less memory between forward and backward: activations that the backward part can make again from what it has anyway.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// Elementwise results of the forward part that backward nodes read are computed again right before the first of them,
// where everything that it takes is alive then for its own sake:
//
//   forward:   u = x @ w;  h = gelu(u);  y = h @ v
//   backward:  dh = dy @ v^T;  dv = h^T @ dy;  du = gelu_grad(dh, u)       h was kept; now h' = gelu(u) before dv
//
// Where gradients of weights run apart (zero-bubble pipelines), dv above is far behind gelu_grad, the last that reads
// u: h is made before that one then, so that it is kept from there on instead of u, rather than beside it. But in
// blocks whose values wait on the host (`on_host`, by Node::block): there h does, too.
//
// `graph` has no composites any more (expand_composites.h); `row_parts`: LocalProgram's. The result computes the same
// values to the bit.
struct Rematerialized {
  Graph graph;
  std::vector<ValueId> same_as;  // for each of its values, the value of the given graph that it equals; kNoValue: none
};
Rematerialized rematerialize(const Graph& graph, int64_t row_parts = 1, bool weights_apart = false,
                             const std::vector<bool>& on_host = {});

}  // namespace partita
