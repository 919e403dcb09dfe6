// What the programs of a pipeline's stages owe each other: messages that match and come, states that lie once.
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/verify/bundle/bundle.h"
#include "tools/verify/stages/stage_sources.h"

namespace partita::verifier {

struct StageNode {
  int stage = 0;
  NodeId node = kNoNode;  // of the stage's rank graph
  auto operator<=>(const StageNode&) const = default;
};

// What passes between the stages, the same in every micro-batch.
struct StageLinks {
  std::map<StageNode, Sources> sources;   // per receive, the sends that it gets
  std::vector<std::vector<NodeId>> sums;  // over all stages: each stage's node
};

struct StagesReport {
  int64_t messages = 0;
  StageLinks links;
};

// The schedules of all stages are run through together, each stopping where it waits for another; a send is done only
// when its receiver has asked for it. No stage uses a mesh axis that it lacks. Aborted: the stage and step that differ,
// or those that wait for each other. The values that the stages compute are not looked at.
absl::StatusOr<StagesReport> check_stages(const ProgramSet& set);

}  // namespace partita::verifier
