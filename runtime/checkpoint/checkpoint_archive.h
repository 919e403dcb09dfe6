// Where complete checkpoints go on to: a slower place than the folder that they are written into, which outlives this
// host. They are copied by a thread of its own, and fetched back by a run that finds less in its folder.
//
//   STEP-NAME/states.safetensors, or each rank's boxes-RANK.safetensors and boxes-RANK.safetensors.copied
//   STEP-NAME/manifest.json       last: without it there is no checkpoint
//   STEP-NAME/good, bad           verdicts, as they are reached
//   writer                        the run that copies there, the last that began to: one before it copies no more
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/objects/object_store.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {

class CheckpointArchive {
 public:
  struct Options {
    std::string folder;  // where checkpoints are written
    std::string place;   // where they go on to (object_store.h)
    int keep = 3;        // newest in the place; 0: all
    int rank = 0;
    bool shared = true;  // all ranks see `folder`; then the first alone copies
    std::string writer;  // says which run this is, to people too; the same on all its ranks, and no other run's
  };
  static absl::StatusOr<std::unique_ptr<CheckpointArchive>> open(const Options& options,
                                                                 const EnvironmentMap& environment);
  // Gives up what is under way.
  ~CheckpointArchive();

  const std::string& place() const { return options_.place; }
  // Steps of the complete checkpoints there that are not bad, rising.
  absl::StatusOr<std::vector<int64_t>> list();
  // Makes the checkpoint appear in the folder, if it is not there: of the ranks that see one folder, one fetches.
  // With `anew` it takes the place of one that is.
  absl::Status fetch(int64_t step, bool anew = false);
  // Whether it is complete there.
  absl::StatusOr<bool> has(int64_t step);

  // Whether no checkpoint is being copied.
  bool idle() const;
  // The one being copied: it must not be removed.
  std::optional<int64_t> in_hand() const;
  // The newest that is there, as far as this rank knows; -1: none.
  int64_t copied() const;
  // Begins to copy this rank's part of a complete checkpoint; only when idle. What fails is told, and tried again 1, 2,
  // 4 … 60 s later.
  void begin(int64_t step);
  // A verdict was written beside the checkpoint's manifest.
  void judge(int64_t step);
  // Until nothing is left to do, or three tries have failed: then the error. The recorder (may be null) is told
  // whenever bytes have moved, and what is being copied: whoever watches the rank ends a run that gets no further.
  absl::Status finish(FlightRecorder* recorder = nullptr);

 private:
  struct Job {
    int64_t step = 0;
    bool verdict = false;  // alone; else the whole checkpoint
  };
  explicit CheckpointArchive(const Options& options) : options_(options) {}
  void push(const Job& job);
  void work();
  absl::Status run(const Job& job);
  absl::Status claim();
  absl::Status copy(int64_t step);
  absl::Status copy_verdict(int64_t step);
  absl::Status copy_file(int64_t step, const std::string& name);
  absl::Status wait_for_others(int64_t step, const std::string& mark);
  absl::Status prune();
  absl::Status fetch_files(int64_t step);
  // False where it is to give up.
  bool pause(double seconds);
  // What is not in the place yet, and where it is; under mutex_.
  std::string under_way() const;

  const Options options_;
  Transfers transfers_;
  std::unique_ptr<ObjectStore> store_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first is under way
  bool claimed_ = false;  // of the thread
  std::string object_;    // of it
  int failed_ = 0;        // tries of it
  bool last_ = false;     // finish() waits
  absl::Status status_;
  int64_t copied_ = -1;
  std::thread thread_;
};

}  // namespace partita::runtime
