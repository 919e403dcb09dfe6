#include "tools/calibrate/rank_team.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "base/host/processors.h"
#include "base/status.h"
#include "runtime/transports/collective_threads.h"

namespace partita {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

constexpr size_t kAgreeing = 3;
constexpr double kAgreement = 0.02;

}  // namespace

bool settled(std::vector<double> rounds) {
  if (!may_end(rounds)) return false;
  std::partial_sort(rounds.begin(), rounds.begin() + kAgreeing, rounds.end());
  return rounds[kAgreeing - 1] <= rounds[0] * (1 + kAgreement);
}

bool may_end(const std::vector<double>& rounds) { return rounds.size() >= kFewestRounds; }

Timing timing_of(std::vector<double> rounds) {
  std::sort(rounds.begin(), rounds.end());
  const double best = rounds.front(), median = rounds[rounds.size() / 2];
  return Timing{best, best > 0 ? median / best - 1 : 0};
}

RankTeam RankTeam::of(int ranks) {
  RankTeam team;
  const int cores = usable_processors();
  team.ranks = ranks;
  team.threads = std::max(1, cores / ranks);
  if (ranks > cores) team.round_seconds *= 4;  // long beside the scheduler's slices, in which ranks take turns
  return team;
}

RankTeam RankTeam::on_gpus(int ranks, const std::string& target) {
  RankTeam team = of(ranks);
  team.round_seconds = 0.02;  // long beside the wait for the queue at its end
  auto program = std::make_shared<runtime::Program>();
  program->target = target;
  team.program = std::move(program);
  return team;
}

absl::StatusOr<Timing> RankTeam::time(const PrepareRank& prepare) const {
  runtime::ThreadWorld world(ranks);
  std::barrier together(ranks);
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<Clock::time_point> begins(static_cast<size_t>(ranks)), ends(static_cast<size_t>(ranks));
  std::vector<double> samples;
  std::atomic<bool> failed = false, done = false;
  int64_t calls = 1;
  const Clock::time_point first = Clock::now();
  auto rank_body = [&](int rank) {
    absl::Status& status = results[static_cast<size_t>(rank)];
    omp_set_num_threads(threads);
    std::unique_ptr<runtime::Communicator> control;  // each outlives those below
    std::unique_ptr<runtime::Device> device;
    std::unique_ptr<runtime::Communicator> of_device;
    RankWork work;
    auto done_by_device = [&] { return device ? device->synchronize() : absl::OkStatus(); };
    auto start = [&]() -> absl::Status {
      RankPlace place{.rank = rank, .threads = threads, .program = program.get()};
      if (ranks > 1) {
        PARTITA_ASSIGN_OR_RETURN(control, world.communicator(rank));
        place.communicator = control.get();
      }
      if (program) {
        PARTITA_ASSIGN_OR_RETURN(device, open_device(*program, rank));
        place.device = device.get();
        if (control) {
          PARTITA_ASSIGN_OR_RETURN(of_device, device->communicator(*control));
          place.communicator = of_device.get();
        }
      }
      PARTITA_ASSIGN_OR_RETURN(work, prepare(place));
      PARTITA_RETURN_IF_ERROR(work());
      return done_by_device();
    };
    auto end = [&] {
      failed = true;
      if (control) control->abort(std::string(status.message()));
    };
    if (status = start(); !status.ok()) end();
    together.arrive_and_wait();
    if (failed) return;
    // Round 0 finds out how many calls a round takes.
    for (int round = 0; round <= rounds; ++round) {
      together.arrive_and_wait();
      if (done) return;
      begins[static_cast<size_t>(rank)] = Clock::now();
      for (int64_t k = 0; k < calls && status.ok(); ++k) status = work();
      if (status.ok()) status = done_by_device();
      ends[static_cast<size_t>(rank)] = Clock::now();
      if (!status.ok()) end();
      together.arrive_and_wait();  // nobody sets `failed` from here to the next round
      if (failed) return;
      if (rank != 0) continue;
      if (round == 0) {  // one call, which ranks may have begun at very different times
        double longest = 1e-9;
        for (size_t r = 0; r < begins.size(); ++r) longest = std::max(longest, seconds(begins[r], ends[r]));
        calls = std::clamp<int64_t>(static_cast<int64_t>(round_seconds / longest), 1, 1 << 16);
      } else {
        samples.push_back(
            seconds(*std::min_element(begins.begin(), begins.end()), *std::max_element(ends.begin(), ends.end())) /
            static_cast<double>(calls));
        bool late = may_end(samples) && seconds(first, Clock::now()) > most_seconds;
        done = late || settled(samples);  // all see it at the next barrier
      }
    }
  };
  std::vector<std::thread> threads_of_ranks;
  for (int r = 0; r < ranks; ++r) threads_of_ranks.emplace_back(rank_body, r);
  for (std::thread& t : threads_of_ranks) t.join();
  PARTITA_RETURN_IF_ERROR(runtime::outcome_of(results));
  return timing_of(std::move(samples));
}

}  // namespace partita
