// What values are views of.
#pragma once

#include "ir/graph/graph.h"

namespace partita {

// The value whose bytes `v` is a view of; `v` itself where it is none.
inline ValueId storage_of(const Graph& graph, ValueId v) {
  while (graph.producer(v) != nullptr && graph.producer(v)->op->view) v = graph.producer(v)->inputs[0];
  return v;
}

}  // namespace partita
