// Dimensions of parameters that a mesh axis does not divide, or that leave rows of products' operands unaligned in
// memory (a vocabulary of 50257), become longer.
#pragma once

#include <functional>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

struct PaddedGraph {
  Graph graph;
  std::vector<Shape> logical;  // of the states, as they were; empty where nothing is padded
  std::vector<ValueId> now;    // for each value of the old graph, its value in the new one
};

struct Padding {
  int64_t parts = 1;                                // of dimensions that are
  std::function<bool(const State&, int)> is_split;  // by parameter and dimension
  // Bytes that a row of an operand or result of a product is to be a multiple of. Where it is no multiple of
  // kAlignedRow, it becomes one of `row_bytes`, or of kAlignedRow, if that makes it a 32nd longer at most. 1: any.
  int64_t row_bytes = 1;
};
inline constexpr int64_t kAlignedRow = 16;  // bytes: what the fastest kernels of GPUs' libraries need

// Makes dimensions of parameters longer that are split and that the parts do not divide, or whose rows are unaligned,
// with all that they meet: logits, gradients, optimizer states. What is added to a state is zero before and after
// every step and changes no other number (ir/graph/padding.h); a dimension for which this does not follow from the ops'
// definitions is left as it is. Outputs keep their shapes.
PaddedGraph pad_dimensions(const Graph& graph, const Padding& padding);

}  // namespace partita
