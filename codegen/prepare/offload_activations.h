// Activation offload: what blocks of a GPU program keep for their backward part waits in the host's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "codegen/prepare/host_transfers.h"
#include "ir/graph/graph.h"

namespace partita {

// Whether what the reader's block keeps goes to the host; `blocks`: by Node::block.
bool goes_to_host(const Node& reader, const std::vector<bool>& blocks);

// A value that the forward part makes and that the backward part of such blocks alone reads later is copied to the host
// as soon as it is there, and back when the backward part of the block before its reader's begins:
//
//   forward:   h = f(x)   h' = transfer(h) host   …       backward:   h'' = transfer(h')   (block k + 1)   g(h'')
//
// What is a view of such values, or a few operations on them that every reader does by itself (CodeGraph::free), is
// made again from the copies. The copies are nodes of the readers' parts of the schedule. Values of a KiB stay.
// `phases`: per node, the part of its segment that a schedule runs on its own (CodeGraph::phases); `blocks`: as
// goes_to_host's; `strict`: as CodeGraph's.
SidedGraph offload_activations(const Graph& graph, std::vector<int32_t> phases, const std::vector<bool>& blocks,
                               bool strict);

}  // namespace partita
