// What bounds the integers that a graph is fed: the rows of the tables that they index, the classes that they name.
#pragma once

#include <map>
#include <string>

#include "base/index_bounds.h"
#include "ir/graph/graph.h"

namespace partita {

// Graph input -> what all its uses allow; inputs that nothing bounds are absent. Read from formulas: an op with one
// integer operand and float ones, of which one whole factor stands in the float ones alone, reads that factor by the
// integers. Followed through views, casts, slices, padding and constants beside them (labels that a model moves by
// one), and selections that put something else in the place of one value (ignore_index) or of values below zero.
std::map<std::string, IndexBounds> index_bounds(const Graph& graph);

}  // namespace partita
