// What the stages of a pipeline send each other, in the one order that both sides keep.
#pragma once

#include <set>
#include <vector>

#include "partitioner/stages/assign_stages.h"

namespace partita {

// `value` goes from one stage of an assignment to another. `segment`: where both sides do it. A value of an earlier
// segment (or a state) is sent at the segment's start, any other right after it is made; all that a segment receives is
// asked for at its start. Of a partial sum, the sender's term goes.
struct Message {
  ValueId value = kNoValue;
  int from = 0, to = 0;  // once a step: `to` is the index in the pipeline alone
  Segment segment = Segment::kForward;
  bool early = false;  // at the start of the segment
  // Both sides keep one order for each channel. What flows forward and what flows backward, and what goes over more
  // stages, meets in orders that differ where one of the pipeline has several of the assignment.
  int channel = 0;
};

struct StageMessages {
  std::vector<Message> all;           // by segment, early ones first, then as their values are made
  std::vector<std::set<int>> needed;  // per value: the stages that read it with each micro-batch, those of the
                                      // pipeline that read it once a step (a sum: whole)
  std::vector<bool> live;             // per node: leads to an output or a state
  int channels = 1;
};

// Stage k of the assignment is chunk k / `pipeline_size` of stage k % `pipeline_size` of the pipeline, which sends to
// itself what another chunk of it reads of the same micro-batch.
StageMessages plan_messages(const Graph& graph, const StageAssignment& stages, int pipeline_size);

// Whether the segment runs with each micro-batch.
inline bool with_each_micro_batch(Segment segment) {
  return segment == Segment::kForward || segment == Segment::kBackward;
}

}  // namespace partita
