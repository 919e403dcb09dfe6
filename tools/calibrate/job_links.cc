#include "tools/calibrate/job_links.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

namespace rt = runtime;
using Clock = std::chrono::steady_clock;

// Of each number the largest that a rank has, once all have come.
absl::Status take_largest(rt::Communicator& control, std::vector<double>& own) {
  return control.run({.kind = rt::CollectiveKind::kAllReduce,
                      .dtype = DType::kF64,
                      .reduce = rt::ReduceOp::kMax,
                      .count = static_cast<int64_t>(own.size()),
                      .output = own.data(),
                      .label = "calibration's clock"});
}

// Of so many calls each, the seconds of rounds that follow each other without a pause, after one that does not count:
// it fetches, and spends what a network's shaping lets through at once after a pause (a bucket of tokens). A round
// takes as long as its slowest rank.
absl::StatusOr<std::vector<double>> run_rounds(const JobRank& job, const RankWork& work, int64_t calls, size_t rounds) {
  std::vector<double> seconds(rounds, 0);
  PARTITA_RETURN_IF_ERROR(take_largest(*job.control, seconds));  // all begin together
  Clock::time_point begin = Clock::now();
  for (size_t round = 0; round <= rounds; ++round) {
    for (int64_t k = 0; k < calls; ++k) PARTITA_RETURN_IF_ERROR(work());
    if (job.device != nullptr) PARTITA_RETURN_IF_ERROR(job.device->synchronize());
    const Clock::time_point end = Clock::now();
    if (round > 0) seconds[round - 1] = std::chrono::duration<double>(end - begin).count();
    begin = end;
  }
  PARTITA_RETURN_IF_ERROR(take_largest(*job.control, seconds));
  return seconds;
}

// All that ranks decide by is of all ranks, so that they decide alike.
absl::StatusOr<Timing> time_work(const JobRank& job, const RankPlace& place, const PrepareRank& prepare,
                                 const TimingLimits& limits) {
  constexpr int64_t kMostCalls = 1 << 16, kGrowth = 8;  // the first calls may go faster than those that follow
  omp_set_num_threads(job.threads);
  PARTITA_ASSIGN_OR_RETURN(const RankWork work, prepare(place));
  int64_t calls = 1;
  for (int64_t before = 0; calls > before;) {
    PARTITA_ASSIGN_OR_RETURN(const std::vector<double> once, run_rounds(job, work, calls, 1));
    const auto wanted =
        static_cast<int64_t>(limits.round_seconds / std::max(once[0], 1e-9) * static_cast<double>(calls));
    before = calls, calls = std::clamp(wanted, calls, std::min(kGrowth * calls, kMostCalls));
  }
  std::vector<double> rounds;
  for (double all = 0; static_cast<int>(rounds.size()) < limits.rounds && !settled(rounds) &&
                       !(may_end(rounds) && all > limits.most_seconds);) {
    PARTITA_ASSIGN_OR_RETURN(const std::vector<double> some, run_rounds(job, work, calls, kFewestRounds));
    for (double seconds : some) all += seconds, rounds.push_back(seconds / static_cast<double>(calls));
  }
  return timing_of(std::move(rounds));
}

// World ranks that meet: every `stride`th of a part of `span` ranks, this one among them.
std::vector<int> members(int rank, int span, int stride) {
  std::vector<int> list;
  const int first = rank / span * span;
  for (int r = first + (rank - first) % stride; r < first + span; r += stride) list.push_back(r);
  return list;
}

}  // namespace

absl::StatusOr<JobLinks> measure_job_links(const JobRank& job, const LinkSizes& sizes, const TimingLimits& limits,
                                           const std::function<void(const std::string&)>& say) {
  const int rank = job.control->rank(), all = job.control->size(), here = job.per_node, nodes = all / here;
  JobLinks out;
  DeviceGroup group;
  group.nodes = nodes, group.devices_per_node = here;
  if (job.device != nullptr) group.device.host_update_rate = 1;  // no host: collectives are NCCL's
  auto joined = [&](int span, int stride) -> absl::StatusOr<JoinedRanks> {
    const std::vector<int> list = members(rank, span, stride);
    PARTITA_ASSIGN_OR_RETURN(const rt::GroupId id, job.data->create_group(list));
    const RankPlace place{.rank = static_cast<int>(std::find(list.begin(), list.end(), rank) - list.begin()),
                          .threads = job.threads,
                          .communicator = job.data,
                          .device = job.device,
                          .program = job.program,
                          .group = id};
    return JoinedRanks{
        group,
        {static_cast<int64_t>(list.size()), stride},
        [&job, place](const PrepareRank& prepare, const TimingLimits& l) { return time_work(job, place, prepare, l); },
        limits};
  };
  auto measure = [&](int span, int stride, std::optional<LinkFit>& fit) -> absl::Status {
    group.links.push_back({{}, span});
    PARTITA_ASSIGN_OR_RETURN(const JoinedRanks ranks, joined(span, stride));
    PARTITA_ASSIGN_OR_RETURN(fit, measure_links(ranks, sizes));
    group.links.back().link = fit->link;
    out.noise = std::max(out.noise, fit->noise);
    return absl::OkStatus();
  };
  if (here > 1) {
    say(cat("between the ", here, " ranks of ", nodes == 1 ? "the node" : "each node"));
    PARTITA_RETURN_IF_ERROR(measure(here, 1, out.node));
  }
  if (nodes > 1) {
    say(cat("between ", nodes, " nodes, ", here, here == 1 ? " rank" : " ranks", " of each at once"));
    PARTITA_RETURN_IF_ERROR(measure(all, here, out.network));
  }
  if (here > 1 && nodes > 1) {
    say("all ranks together");
    PARTITA_ASSIGN_OR_RETURN(const JoinedRanks ranks, joined(all, 1));
    PARTITA_ASSIGN_OR_RETURN(out.error, prediction_error(ranks, sizes));
  }
  return out;
}

}  // namespace partita
