// Finds the blocks of a model, layers that repeat and sections of what does not, and numbers them in Node::block.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// The backbone is the forward nodes that depend on both data and weights. It is cut at each value that everything later
// depends on alone (the residual stream, a chain's values); the structure of the pieces between cuts makes a sequence
// in which repeated runs are found. Nodes of one run have the same structure in each instance, in the same order: op,
// attributes, types, and which node of the block feeds which. Instances are numbered from 0 through the whole model,
// also where it has several kinds of block (stages of a ResNet, encoder and decoder). Parts that do not repeat are
// blocks of one instance each, where they have products enough (cut_sections.h): all of a U-Net, the first block of
// each stage of a ResNet. Nodes apart from the backbone (a weight's transpose) join the block where all of their
// readers are; what blocks share (masks, tables), short parts that do not repeat and the head, from the last product
// on, stay -1.
absl::StatusOr<Graph> tag_blocks(const Graph& graph, const PassContext& context);

}  // namespace partita
