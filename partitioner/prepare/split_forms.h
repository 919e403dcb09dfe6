// Ops that must keep a factor whole, written so that it can be split (ir/op/op_def.h, split_form).
#pragma once

#include <functional>

#include "ir/graph/graph.h"

namespace partita {

struct SplitForms {
  Graph graph;
  std::vector<ValueId> now;  // for each value of the old graph, its value in the new one
};

// Rewrites the nodes for which `wanted` holds and that have another form.
SplitForms use_split_forms(const Graph& graph, const std::function<bool(const Node&)>& wanted);

// Whether the node has another form, and keeps whole what `ranks` could divide, padded perhaps: a factor of one operand
// (a vocabulary), not one in which operands meet.
bool keeps_divisible(const Graph& graph, const Node& node, int64_t ranks);

// The factor of dimension 0 (samples) that the node must keep whole though its results have it too, and that its other
// form can split: the node takes statistics over the batch. -1: there is none.
int whole_samples(const Node& node, const Formula& formula);
// Whether there is one and `ranks` > 1 ranks could share it.
bool keeps_samples(const Graph& graph, const Node& node, int64_t ranks);

}  // namespace partita
