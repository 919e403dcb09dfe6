// What the stages of a pipeline send each other, in the one order that both sides keep.
#pragma once

#include <vector>

#include "partitioner/assign_stages.h"

namespace partita {

// `value` goes from one stage to another. `segment`: where both sides do it. A value of an earlier segment (or a state)
// is sent at the segment's start, any other right after it is made; all that a segment receives is asked for at its
// start. Term: of a sum that is owed, the sender's part.
struct Message {
  ValueId value = kNoValue;
  int from = 0, to = 0;
  Segment segment = Segment::kForward;
  bool early = false;  // at the start of the segment
};

struct StageMessages {
  std::vector<Message> all;           // by segment, early ones first, then as their values are made
  std::vector<std::set<int>> needed;  // per value: the stages that read it (of a sum: that read it whole)
  std::vector<bool> live;             // per node: leads to an output or a state
};

StageMessages plan_messages(const Graph& graph, const StageAssignment& stages);

}  // namespace partita
