// When to write checkpoints, which to keep, and how a run goes on from one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/checkpoint/checkpoint_archive.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/mirror.h"
#include "runtime/checkpoint/module_names.h"
#include "runtime/communicate/collective.h"
#include "runtime/execute/executor.h"

namespace partita::runtime {

struct CheckpointOptions {
  std::string folder;               // empty: none are written
  std::string to;                   // not empty: where complete ones go on to (runtime/objects/object_store.h)
  EnvironmentMap environment = {};  // credentials for that
  int64_t every = 0;                // steps; 0: only after the last step and when told to stop
  int keep = 3;                     // newest; 0: all
  int keep_best = 0;                // beside them those of lowest evaluation loss
  std::string resume;               // empty: a new run; "auto": the newest good one in `folder`, if any; else a path
  // What a new run starts from: the parameters and running statistics of a checkpoint, or of a PyTorch module's
  // safetensors file or folder; and the states of its optimizer, a safetensors file. A module's names come of ours so.
  std::string init, init_optimizer;
  Renaming renaming;
  MirrorOptions mirror = {};
};

class Checkpointer {
 public:
  // Collective. FailedPrecondition where the folder holds checkpoints and the run does not resume, or another run
  // writes there. `executor`, `communicator` (null: one rank) and `recorder` (may be null) outlive it.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> open(const CheckpointOptions& options, const Executor& executor,
                                                            Communicator* communicator,
                                                            FlightRecorder* recorder = nullptr);
  ~Checkpointer();

  // Collective. Loads the states, and gives the checkpoint's manifest, where the options name one that is there. With
  // "auto", bad and damaged ones are passed over with a warning, DataLoss when all are; and mirrored states are taken
  // where they are newer.
  absl::StatusOr<std::optional<CheckpointManifest>> resume();

  // Collective: the states are again those of the newest good checkpoint in the folder, whose manifest it gives; those
  // that are newer and not good are marked as bad, for the reason `why`. FailedPrecondition where none is good.
  absl::StatusOr<CheckpointManifest> roll_back(const std::string& why);
  // On the first rank, others do nothing: the checkpoints of up to so many steps are good, for the reason `why`.
  void mark_good(int64_t steps_taken, const std::string& why);
  // Whether the folder holds a good one.
  bool has_good() const;
  // Those that have not been found good are bad.
  void mark_bad(const std::string& why);

  // How far this rank is with the checkpoint in hand, and what is done with the largest of these over all ranks.
  struct Progress {
    int64_t writing = 0, failed = 0;
    int64_t archiving = 0;  // an earlier one goes on to its slower place
    int64_t mirroring = 0, mirror_failed = 0;
  };
  Progress progress() const;
  absl::Status settle(const Progress& all);

  bool is_due(int64_t steps_taken) const { return options_.every > 0 && steps_taken % options_.every == 0; }
  bool mirror_is_due(int64_t steps_taken) const { return mirror_ != nullptr && mirror_->is_due(steps_taken); }
  // Collective: begins to copy the states into other hosts' memory (mirror.h).
  absl::Status mirror(CheckpointManifest head);
  // Collective: what that costs; empty where nothing is mirrored.
  absl::StatusOr<std::string> mirror_told() const;
  // Collective: copies the states and goes on. Waits for the checkpoint before, if that is still being written. A
  // checkpoint that cannot be written is warned of, not an error: the ones before are kept.
  absl::Status save(CheckpointManifest head);
  // Collective: waits for the last checkpoint. Its error, if it was not written.
  absl::Status finish();
  // Collective, after finish(), when the run ends: waits until the last checkpoint has gone on to its slower place,
  // where there is one. Mirrored states are of no more use.
  absl::Status leave();
  int64_t last_saved() const { return last_saved_; }
  // On the first rank, once for each checkpoint that is complete: what it took.
  struct Cost {
    int64_t bytes = 0;   // of all ranks
    double seconds = 0;  // from the first copy until it was complete
    // Of a wait for one: what it is of the `interval` between checkpoints, how many steps of `step` seconds apart they
    // would take a share of `little`. Seconds.
    std::string told(double waited, double interval, double step, double little) const;
  };
  std::optional<Cost> take_cost() { return std::exchange(cost_, std::nullopt); }

 private:
  struct Lock;
  Checkpointer(const CheckpointOptions& options, const Executor& executor, Communicator* communicator,
               FlightRecorder* recorder);
  bool is_first() const { return communicator_ == nullptr || communicator_->rank() == 0; }
  absl::Status lock_folder();
  absl::Status find_out_shared();
  // Collective: other hosts' folders keep what the first rank's does.
  absl::Status follow_first() const;
  absl::Status gather_tensors();
  std::vector<HeldState> held_states() const;
  absl::StatusOr<std::vector<std::string>> candidates() const;
  absl::Status start_from();
  absl::Status load(const std::string& folder, bool parameters_only, CheckpointManifest& manifest);
  // The first rank's list of folders, until one loads; its manifest, or nothing where the list is empty.
  absl::StatusOr<std::optional<CheckpointManifest>> load_first_of(std::vector<std::string> paths, bool pass_damaged);
  absl::Status open_archive();
  absl::Status finish_archive();
  // Makes a checkpoint of the folder appear there that the archive has.
  absl::Status bring(const std::string& path);
  // The step of a checkpoint of this run's folder.
  std::optional<int64_t> step_of_folder(const std::string& path) const;
  // Collective: puts the archive's copy in the place of a damaged checkpoint of the folder; false where it has none.
  absl::StatusOr<bool> bring_anew(const std::string& path);
  // Collective: whether a checkpoint did not load because some rank's files are damaged or missing; it is warned of.
  absl::StatusOr<bool> is_damaged(const absl::Status& loaded) const;
  // Collective, with folders of their own: what goes on from `step` (-1: from the start) while a folder holds newer
  // ones says so, and does not begin anew.
  absl::Status look_elsewhere(int64_t step) const;
  void archive(int64_t step);
  void judge(int64_t step, CheckpointVerdict verdict, const std::string& why);
  void prune() const;
  void warn(const absl::Status& why, int64_t step);
  absl::Status settle_writer(const Progress& all);
  // That another rank is gone: more than what this one could not write meanwhile.
  absl::Status lost() const;

  const CheckpointOptions options_;
  const Executor& executor_;
  Communicator* const communicator_;
  FlightRecorder* const recorder_;
  bool shared_ = true;    // all ranks see the folder
  bool follows_ = false;  // else: it is another than the first rank's, and this rank looks after it
  std::unique_ptr<Lock> lock_;
  std::vector<CheckpointTensor> tensors_;  // of all ranks
  std::vector<bool> owned_;  // by state of this rank's program: of the ranks with that box, this one writes it
  RegionMemory copy_;        // of the states, as they were
  std::unique_ptr<CheckpointWriter> writer_;  // set while one is written
  std::unique_ptr<CheckpointArchive> archive_;
  std::unique_ptr<Mirror> mirror_;
  bool archives_ = false, told_behind_ = false;  // the one being written goes on; not all do
  bool committed_ = false;                       // it waits for nothing but the first rank's rename
  int64_t last_saved_ = -1, last_good_ = -1;     // of the newest checkpoint; up to which they are good
  std::string why_good_;
  std::vector<int64_t> unproved_;  // complete checkpoints that no good step has followed
  absl::Status last_;              // of the newest checkpoint
  std::optional<Cost> cost_;       // likewise
};

}  // namespace partita::runtime
