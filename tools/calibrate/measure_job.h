// partita doctor --links: measures what joins the ranks of the job that this process is one of, as its launcher says.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "runtime/talk_flags.h"
#include "tools/calibrate/rank_team.h"

namespace partita {

struct JobRequest {
  std::string file;  // of links, as profiles have them; rank 0 writes it
  std::string gpu;   // "sm_90": GPUs talk, one a rank
  runtime::TalkFlags talk;
  int rounds = TimingLimits().rounds;  // of each message, at most
};

// Every rank calls it; rank 0 prints what was found. FailedPrecondition for one rank alone, or where nodes have
// different numbers of ranks.
absl::Status measure_job(const JobRequest& request);

}  // namespace partita
