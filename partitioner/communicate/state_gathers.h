// Gathers of states that are stored in parts (ZeRO-3): which nodes they are, and how long what they bring is needed.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

class StateGathers {
 public:
  // `graph` must outlive this.
  explicit StateGathers(const Graph& graph);

  // Whether the node brings together what ranks have of states, or of what the prologue made of them, or what other
  // such gathers brought: in levels, one comes after the other.
  bool is_gather(const Node& node) const;
  // The first node that computes with what a gather brings: what leaves its elements in another order is no use of it.
  NodeId first_use(const Node& gather) const;
  // The first node of backward that does so with a gathered value; kNoNode: none does.
  NodeId first_use_in_backward(ValueId gathered) const;
  // The last node that reads a gathered value, in another order of its elements too; kNoNode: none does.
  NodeId last_read(ValueId gathered) const;

 private:
  bool moves(const Node& node) const;
  template <typename Visit>
  void for_readers(ValueId gathered, Visit visit) const;

  const Graph& g_;
  std::vector<std::vector<NodeId>> readers_;
  // Per value: at hand when a pass begins, perhaps under another shape; brought by gathers of such, in any order.
  std::vector<bool> state_, gathered_;
};

// Bytes that a pass gathers at most for a block, or at once outside of blocks.
int64_t largest_gathered(const Graph& graph);

// The most bytes of gathered states that are alive at once, from the start of the gather to the last reader.
int64_t gathered_bytes(const Graph& graph);

}  // namespace partita
