// Which collectives' results can wait: nothing of their own segment computes with them.
#pragma once

#include <vector>

#include "partitioner/localize/local_program.h"

namespace partita {

class DeferrableResults {
 public:
  // `program` must outlive this.
  explicit DeferrableResults(const LocalProgram& program);

  // Whether several operands of the node can travel together. What goes from stage to stage keeps its order in all of
  // them, and is left alone.
  bool is_joint(const Node& node) const;
  // Whether the node moves or converts one value, and may wait with it.
  static bool passes(const Node& node);
  // Whether the node's results are first computed with in a later segment; in its own they are moved, converted or sent
  // on by other joint collectives at most.
  bool are_deferrable(const Node& node) const;
  // Whether all that is computed with the node's results is to sum each up, over more ranks and then over
  // micro-batches.
  bool are_accumulated(const Node& node) const;
  // The first node that does more with the node's results than to move or convert them; kNoNode: none does.
  NodeId first_use(const Node& node) const;

 private:
  // goes_on(n, reader): for every reader of the node's results, and of those of each reader that it is true for.
  template <typename GoesOn>
  void walk(const Node& node, GoesOn goes_on) const;

  const LocalProgram& program_;
  std::vector<std::vector<NodeId>> readers_;
};

}  // namespace partita
