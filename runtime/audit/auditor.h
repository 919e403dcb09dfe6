// Silent corruption: a bit that flips in a rank's memory, a processor that computes wrongly once. Runs are
// deterministic, so that what ranks hold alike has the same bits, and a step that is run twice gives the same ones.
//
// After every so many steps the states that several ranks hold are compared over these ranks, and the messages between
// stages of that step as they left with how they arrived; every second such step is run twice and compared with itself.
// Aborted where something differs: with the step, the state or the collective, and the ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/audit/recording_communicator.h"
#include "runtime/communicate/collective.h"
#include "runtime/execute/executor.h"

namespace partita::runtime {

class Auditor {
 public:
  // Collective. `recorder`: the communicator that the executor's steps use; null, like `communicator`, for one rank.
  // All of them outlive this.
  static absl::StatusOr<std::unique_ptr<Auditor>> open(Executor& executor, Communicator* communicator,
                                                       RecordingCommunicator* recorder, int64_t every);

  bool is_due(int64_t steps_taken) const { return every_ > 0 && steps_taken % every_ == 0; }

  // Collective. Runs step number `step` (from 0) by `run`, once or twice, and compares. A step that is run twice needs
  // memory of the host for a copy of this rank's states.
  absl::Status run_step(int64_t step, absl::FunctionRef<absl::Status()> run);
  // Collective. Of the states as they are, `steps_taken` steps after the start.
  absl::Status compare_replicas(int64_t steps_taken);

 private:
  // States that the ranks of one group hold alike.
  struct Replicas {
    std::vector<size_t> states;  // of the program
    std::vector<int> ranks;      // of the world
    GroupId group = kWorldGroup;
  };
  // What a step made of the states, and what went into its collectives on the way.
  struct Trace {
    std::vector<uint64_t> states;
    std::vector<CollectiveRecord> collectives;
  };

  Auditor(Executor& executor, Communicator* communicator, RecordingCommunicator* recorder, int64_t every)
      : executor_(executor), communicator_(communicator), recorder_(recorder), every_(every) {}
  absl::Status group_states();
  absl::StatusOr<std::vector<uint64_t>> checksums() const;
  absl::Status compare_replicas(int64_t steps_taken, std::span<const uint64_t> checksums);
  // Messages are compared, too.
  absl::StatusOr<Trace> traced(int64_t step, absl::FunctionRef<absl::Status()> run);
  std::vector<std::byte> states() const;
  absl::Status restore(std::span<const std::byte> saved);
  absl::StatusOr<std::vector<uint64_t>> gathered(const Replicas& r, std::span<const uint64_t> mine);
  absl::Status compare(const Replicas& r, std::span<const uint64_t> all, std::string_view when);
  absl::Status compare_runs(int64_t step, const Trace& first, const Trace& second);
  absl::Status compare_messages(int64_t step, const std::vector<CollectiveRecord>& records);
  const char* name_of(size_t state) const;

  Executor& executor_;
  Communicator* const communicator_;
  RecordingCommunicator* const recorder_;
  const int64_t every_;
  int64_t audits_ = 0;
  std::vector<Replicas> replicas_;
};

}  // namespace partita::runtime
