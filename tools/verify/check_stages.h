// What the programs of a pipeline's stages owe each other: messages that match and come, states that lie once.
#pragma once

#include "absl/status/statusor.h"
#include "tools/verify/bundle.h"

namespace partita::verifier {

struct StagesReport {
  int64_t messages = 0, states = 0, outputs = 0;
};

// The schedules of all stages are run through together, each stopping where it waits for another; a send is done only
// when its receiver has asked for it. Aborted: the stage and step that differ, or those that wait for each other. The
// values that the stages compute are not looked at.
absl::StatusOr<StagesReport> check_stages(const Bundle& bundle);

}  // namespace partita::verifier
