// Values of a GPU's convolutions with their channels last: N, H, W, C in memory, as tensor cores take them.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// Convolutions over two dimensions in 16 bits or tf32, and what lies between them, on values with their channels last:
//
//   a = conv(x, w);  b = relu(a);  c = conv(b, v)
//   becomes
//   x' = transpose(x);  w' = transpose(w);  v' = transpose(v)
//   a' = conv(x', w') {channels_last};  b' = relu(a');  c' = conv(b', v') {channels_last};  c = transpose(c')
//
// Elementwise ops, poolings, joins, slices, sums and broadcasts of such values go along, in the forward and backward
// parts alone: parameters, gradients of weights once they are widened, and states stay as the graph has them. A value
// that is read in both ways is there in both. `graph` has no composites any more (expand_composites.h).
struct ChannelsLast {
  Graph graph;
  std::vector<ValueId> same_as;  // for each of its values, the value of the given graph that it is; kNoValue: none
  std::vector<bool> turned;      // for each of its values, whether it is that with its channels last
};
ChannelsLast lay_channels_last(const Graph& graph);

}  // namespace partita
