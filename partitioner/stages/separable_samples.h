// Whether a run of the graph can be computed in parts of its samples, and its loss as the mean over several runs.
#pragma once

#include "ir/graph/graph.h"

namespace partita {

// True where it is plain from the formulas that what the forward part sums over samples goes through linear ops alone,
// so that parts can be added up, and that nothing else needs several samples at once. False where it does not (a
// statistic over the batch that something reads), and also where samples cannot be followed: localize() then tells.
bool samples_add_up(const Graph& graph);

// What the loss (output 0) of a forward graph is of the samples of a run.
enum class LossOverSamples {
  kMean,      // each sample adds its own term, with a factor that no sample changes: one of so many samples' share
  kSummed,    // the same, but for terms that are added up as they are, whatever the number of samples
  kCounted,   // the same, but for factors that are computed from all samples' data: a number of targets that count
  kTogether,  // samples meet before the end: they are compared with each other, or go through what is not linear
  kUnknown,   // samples cannot be followed through a node
};

struct SamplesOfLoss {
  LossOverSamples is = LossOverSamples::kMean;
  NodeId node = kNoNode;  // kTogether, kUnknown: where
};

// Followed by formulas alone. Batch statistics with running averages (batch norm) are taken for what a sample's are
// alone: of which samples they are is semantics.batch_norm's. A run of one sample is kMean.
SamplesOfLoss samples_of_loss(const Graph& forward);

}  // namespace partita
