// Ops that must keep a factor whole, written so that it can be split (ir/op_def.h, split_form).
#pragma once

#include <functional>

#include "ir/graph.h"

namespace partita {

struct SplitForms {
  Graph graph;
  std::vector<ValueId> now;  // for each value of the old graph, its value in the new one
};

// Rewrites the nodes for which `wanted` holds and that have another form.
SplitForms use_split_forms(const Graph& graph, const std::function<bool(const Node&)>& wanted);

// Whether the node keeps whole the samples that its results have too, though `ranks` ranks could share them: it takes
// statistics over the batch.
bool keeps_samples(const Graph& graph, const Node& node, int64_t ranks);

}  // namespace partita
