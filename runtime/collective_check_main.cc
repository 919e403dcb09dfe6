// partita_collective_check MODE [BACKEND] [TIMEOUT_SECONDS] [encrypt]: one rank of a communication test, started by
// mpirun, torchrun, srun, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Prints "rank R of N over BACKEND
// after S s: STATUS", S counted from when it was connected, and "rank R is closed after S s". BACKEND cuda: what a
// GPU's communicator is here (NCCL, or through the host), TCP its control plane.
//
//   check     all operations against a direct computation
//   bench     times of all-reduces
//   disagree  the last rank brings another bundle
//   absent    the last rank never takes part in an all_reduce
//   die       the last rank dies while rank 0 waits for rank 1 and the others compute
//   abort     the last rank gives up while the others are in an all_reduce
//   mismatch  the last rank issues another operation
//
// Exit code 0: it ended as the mode wants (for the faults: with an error, of the right kind). 1: it did not. 2: bad
// usage.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "base/status.h"
#include "fmt/format.h"
#include "runtime/communicate/collective_check.h"
#include "runtime/device/collective_on_device.h"
#include "runtime/launch/communicator_factory.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  absl::Status status;
  bool as_wanted = false;
};

absl::Status reduce(Communicator& communicator, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), 1.0f);
  return communicator.run({.kind = CollectiveKind::kAllReduce,
                           .count = count,
                           .output = data.data(),
                           .step_id = 7,
                           .label = "grad bucket 3"});
}

bool is_last(const Communicator& communicator) { return communicator.rank() == communicator.size() - 1; }

absl::Status wait_for_failure(Communicator& communicator, std::chrono::seconds limit) {
  for (const auto until = Clock::now() + limit; communicator.failure().ok() && Clock::now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return communicator.failure();
}

Outcome unavailable(const absl::Status& status) { return {status, absl::IsUnavailable(status)}; }

Outcome run_check(Communicator& communicator) {
  absl::Status status = check_collectives(communicator);
  if (status.ok()) status = check_collectives(communicator, {.dtypes = {DType::kF32}, .counts = {kLongestBuffer}});
  return {status, status.ok()};
}

Outcome run_bench(Communicator& communicator) {
  for (int64_t count : {1, 1024, 262144, 16777216}) {
    std::vector<double> times;
    for (int i = 0; i < (count > 1000000 ? 5 : 50); ++i) {
      const auto start = Clock::now();
      if (const absl::Status status = reduce(communicator, count); !status.ok()) return {status, false};
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    if (communicator.rank() == 0)
      std::printf("all_reduce of %lld x f32: %.1f us, %.3f GB/s\n", static_cast<long long>(count), median * 1e6,
                  static_cast<double>(count) * 4e-9 / median);
  }
  return {absl::OkStatus(), true};
}

Outcome run_disagree(Communicator& communicator) {
  const std::byte bundle[4] = {std::byte{1}, std::byte{2}, std::byte{3}, static_cast<std::byte>(is_last(communicator))};
  const absl::Status status = communicator.agree("the bundle's hash", bundle);
  return {status, absl::IsFailedPrecondition(status)};
}

Outcome run_absent(Communicator& communicator) {
  if (is_last(communicator)) return unavailable(wait_for_failure(communicator, std::chrono::seconds(60)));
  return unavailable(reduce(communicator, 1000));
}

Outcome run_die(Communicator& communicator) {
  const int last = communicator.size() - 1, mine = communicator.rank();
  std::vector<CollectiveOp> messages;
  for (int rank = 0; rank < last && mine == last; ++rank)
    messages.push_back({.kind = CollectiveKind::kRecv, .count = 1, .from = rank});
  if (mine != last) messages.push_back({.kind = CollectiveKind::kSend, .count = 1, .to = last});
  if (mine == 0) messages.push_back({.kind = CollectiveKind::kRecv, .count = 1, .from = 1});
  if (mine == 1) messages.push_back({.kind = CollectiveKind::kSend, .count = 1, .to = 0});
  if (const absl::Status status = communicator.connect(messages); !status.ok()) return {status, false};
  if (const absl::Status status = reduce(communicator, 1000); !status.ok()) return {status, false};
  // The others' word that they are through with the reduction; only then is what follows the same in every run.
  float word = 0;
  if (!is_last(communicator)) {
    if (const absl::Status status =
            communicator.run({.kind = CollectiveKind::kSend, .count = 1, .input = &word, .to = last});
        !status.ok())
      return {status, false};
  } else {
    for (int rank = 0; rank < last; ++rank)
      communicator.run({.kind = CollectiveKind::kRecv, .count = 1, .output = &word, .from = rank}).IgnoreError();
    ::_exit(9);
  }
  if (communicator.rank() > 0) return unavailable(wait_for_failure(communicator, std::chrono::seconds(60)));
  float value = 0;
  return unavailable(communicator.run({.kind = CollectiveKind::kRecv,
                                       .count = 1,
                                       .output = &value,
                                       .from = 1,
                                       .step_id = 8,
                                       .label = "activation of block 2"}));
}

Outcome run_abort(Communicator& communicator) {
  if (!is_last(communicator)) return unavailable(reduce(communicator, 100000));
  communicator.abort("its loss is not a number");
  return unavailable(wait_for_failure(communicator, std::chrono::seconds(10)));
}

Outcome run_mismatch(Communicator& communicator) {
  const absl::Status status = reduce(communicator, is_last(communicator) ? 2000 : 1000);
  return {status, absl::IsFailedPrecondition(status) || absl::IsUnavailable(status)};
}

// What a communicator of device memory needs, for as long as it lives.
struct Ways {
  std::unique_ptr<Communicator> control;
  Program program;
  std::unique_ptr<Device> device;
};

absl::StatusOr<std::unique_ptr<Communicator>> open_as_told(const LaunchEnvironment& launch, const std::string& backend,
                                                           const OpenOptions& options, Ways& ways) {
  if (backend != "cuda") return open_communicator(launch, backend, options);
  PARTITA_ASSIGN_OR_RETURN(ways.control, open_communicator(launch, "tcp", options));
  ways.program.target = "cuda:sm_80";
  PARTITA_ASSIGN_OR_RETURN(ways.device, open_device(ways.program, launch.device));
  return open_on_device(*ways.device, *ways.control);
}

int run_rank(const std::string& mode, const std::string& backend, double timeout, bool encrypt) {
  using Mode = Outcome (*)(Communicator&);
  const std::vector<std::pair<std::string, Mode>> modes = {
      {"check", run_check}, {"bench", run_bench}, {"disagree", run_disagree}, {"absent", run_absent},
      {"die", run_die},     {"abort", run_abort}, {"mismatch", run_mismatch}};
  const auto found = std::find_if(modes.begin(), modes.end(), [&](const auto& m) { return m.first == mode; });
  if (found == modes.end() || !(timeout > 0 && timeout < 1e6)) {
    std::fprintf(stderr,
                 "usage: partita_collective_check check|bench|disagree|absent|die|abort|mismatch [auto|mpi|tcp|cuda] "
                 "[TIMEOUT_SECONDS] [encrypt]\n");
    return 2;
  }
  const absl::StatusOr<LaunchEnvironment> launch = parse_launch_environment(read_environment());
  if (!launch.ok()) {
    std::fprintf(stderr, "%s\n", launch.status().ToString().c_str());
    return 2;
  }
  OpenOptions options{{.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000))}};
  options.encrypt = encrypt;
  Ways ways;
  absl::StatusOr<std::unique_ptr<Communicator>> communicator = open_as_told(*launch, backend, options, ways);
  if (!communicator.ok()) {
    std::printf("rank %d of %d is not connected: %s\n", launch->rank, launch->world_size,
                communicator.status().ToString().c_str());
    return 1;
  }
  const auto start = Clock::now();
  const auto elapsed = [&] {
    return fmt::format("{:.1f}", std::chrono::duration<double>(Clock::now() - start).count());
  };
  const Outcome outcome = found->second(**communicator);
  std::printf("%s\n", cat("rank ", launch->rank, " of ", launch->world_size, " over ", (*communicator)->backend(),
                          " after ", elapsed(), " s: ", outcome.status.ToString())
                          .c_str());
  std::fflush(stdout);
  communicator->reset();
  std::printf("rank %d is closed after %s s\n", launch->rank, elapsed().c_str());
  return outcome.as_wanted ? 0 : 1;
}

}  // namespace
}  // namespace partita::runtime

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "", backend = argc > 2 ? argv[2] : "auto";
  return partita::runtime::run_rank(mode, backend, argc > 3 ? std::atof(argv[3]) : 60.0,
                                    argc > 4 && std::string(argv[4]) == "encrypt");
}
