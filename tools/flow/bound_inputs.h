// Which integers a program's inputs may hold.
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "runtime/program/program.h"

namespace partita {

// The bounds of the serial graph's inputs (ir/graph/index_bounds.h), which its programs are to hold data against.
void bound_inputs(const Graph& serial, std::vector<runtime::Program>& programs);

}  // namespace partita
