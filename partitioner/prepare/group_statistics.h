// Batch statistics as plain data parallelism has them: each rank's and micro-batch's samples have their own.
#pragma once

#include <cstdint>

#include "ir/graph/graph.h"

namespace partita {

// The forward graph with `groups` runs of samples, one after the other along dimension 0, in place of one batch, in
// every op that takes statistics over the batch. What read a statistic (running averages) reads the groups' mean. The
// result is the serial program that ranks and micro-batches, one a group, are held against.
Graph group_samples(const Graph& graph, int64_t groups);

}  // namespace partita
