// What bounds the integers that a graph is fed: the rows of the tables that they index.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ir/graph.h"

namespace partita {

// Graph input -> the least bound that a use of it sets (values must be below it); inputs without one are absent. Read
// from formulas: an op with one integer operand and tables (states, constants and what is made of them), of which one
// whole factor stands in the tables alone, reads that factor by the integers. Followed through views and casts.
std::map<std::string, int64_t> index_limits(const Graph& graph);

}  // namespace partita
