// A pipeline's stages as one graph: what is received is what was sent, and a sum over stages is the sum of what they
// hold, with what each of them did to its terms done once to their sum.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/verify/bundle/bundle.h"
#include "tools/verify/stages/check_stages.h"

namespace partita::verifier {

struct JoinedStages {
  Graph graph;
  runtime::Program program;      // the interface alone: mesh, samples, inputs, states, outputs
  std::vector<StageNode> nodes;  // per node of `graph`, a node that it comes from
  // Per stage and value of its graph, the value of `graph` that it is; kNoValue: none.
  std::vector<std::vector<ValueId>> values;
};

// `ordered`: sums have a fixed order, so that none is made of what stages have of it. Aborted where stages state a
// shared input, state or output differently, or leave a different value in one.
absl::StatusOr<JoinedStages> join_stages(const ProgramSet& set, const StageLinks& links, bool ordered = false);

}  // namespace partita::verifier
