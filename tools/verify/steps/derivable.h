// What generated code has to read for what it writes.
#pragma once

#include <set>
#include <vector>

#include "ir/graph/graph.h"

namespace partita::verifier {

// Per value, the value whose bytes it is a view of.
std::vector<ValueId> storage_of(const Graph& graph);

// A value of which a part is needed to compute `value`, and which can neither be read (`given`, by storage) nor be
// computed from what can by ops that generated code does; -1 where there is none. Constants need not be given. A part
// of a concatenation needs those operands alone that it lies in, through slices, views, transposes and elementwise ops.
int underivable(const Graph& graph, const std::vector<ValueId>& storage, const std::vector<const Literal*>& literals,
                int value, const std::set<int>& given);

}  // namespace partita::verifier
