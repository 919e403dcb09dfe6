// Starts the ranks of a run on other hosts over ssh, watches them, and starts them again when that may help.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/launch/hosts_file.h"
#include "tools/launch/launch_job.h"

namespace partita {

// What ssh is asked to do for one rank, as its remote shell reads it. The job's secret comes as the first line of
// standard input, never in the command; when standard input ends the rank is told to save and leave, and killed 100 s
// later, or so many as a second line says, so that none outlives whoever started it.
std::string remote_rank_line(const LaunchJob& job, const std::vector<Host>& hosts, int rank, bool again);

// As runtime::run_job, on `hosts` and by this ssh: a program and its options. A connection that fails counts as a rank
// that was lost. Where the bundle has plans for fewer ranks (job.plans), hosts that do not answer are left out of the
// next start, which takes the largest plan that the others have slots for; when more answer, the ranks are told to save
// and leave, and started again with them.
// Unavailable where there is none for so few.
absl::Status run_on_hosts(const LaunchJob& job, const std::vector<Host>& hosts, const std::vector<std::string>& ssh,
                          const std::string& secret, const std::atomic<bool>* stop);

}  // namespace partita
