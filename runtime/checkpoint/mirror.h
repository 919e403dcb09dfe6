// A copy of the states in the memory of two hosts: a run that loses one host goes on from there, without a disk.
//
// Every so many steps each rank writes its part into a folder in its host's memory, and sends it to a rank of the next
// host, which puts it beside its own. The folder holds checkpoints of layout "boxes", each rank's file what it owns:
//
//   host A   /dev/shm/partita-1000-5c…/step-000000000040/boxes-00000 and 1, its own, and 2 and 3, of host B
//   host B                                               boxes-00002 and 3, its own, and 0 and 1, of host A
//
//   save()    collective: the states are copied, and a thread begins to write
//   settle()  collective, once all ranks are so far: the parts are sent, by a thread; then the checkpoint appears under
//             its name; then the one before goes
//
// So one whole copy is there at any moment, and outlives the ranks. When they start again, gather() looks for the
// newest of which some hosts have all parts, and brings each host what it lacks.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/communicate/collective.h"
#include "runtime/kernel/region_memory.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {

struct MirrorOptions {
  int64_t every = 0;            // steps; 0: none
  std::string in = "/dev/shm";  // a folder in memory, of each host
};

// Who sends to whom.
struct MirrorPartners {
  int to = 0;
  std::vector<int> from;
};
// `hosts`: the ranks of each. The partner is of the next host, the last one's of the first. Of at least two hosts.
MirrorPartners mirror_partners(const std::vector<std::vector<int>>& hosts, int rank);

class Mirror {
 public:
  // Collective. `checkpoints`: the folder of the run's checkpoints, which knows the run again; `resumes`: it goes on.
  // FailedPrecondition where all ranks are on one host; PermissionDenied where others may write into the folder.
  static absl::StatusOr<std::unique_ptr<Mirror>> open(const MirrorOptions& options, const std::string& checkpoints,
                                                      bool resumes, Communicator* communicator,
                                                      FlightRecorder* recorder);
  ~Mirror();

  // Collective: the folder with the newest copy that is whole and of a later step than `above`; empty where there is
  // none, or no memory to gather it. Older and newer ones go.
  absl::StatusOr<std::string> gather(int64_t above);

  bool is_due(int64_t steps_taken) const { return options_.every > 0 && steps_taken % options_.every == 0; }
  // Collective. Nothing is done where the copy before is still on its way, or there is no memory, of which rank 0 tells
  // once.
  absl::Status save(CheckpointManifest head, const std::vector<HeldState>& states,
                    std::span<const int64_t> coordinates);
  // What this rank has still to do before settle() can go on, and whether it failed.
  bool busy() const;
  bool failed() const;
  // Collective: `busy` and `failed` of any rank.
  absl::Status settle(bool busy, bool failed);
  // Waits for what is on its way, and drops all copies: the run went back. All ranks call it.
  void drop();
  // And leaves no folder: the run has ended.
  void forget();

  // Collective: what it costs, for states of so many bytes of this rank. On rank 0.
  absl::StatusOr<std::string> told(int64_t bytes) const;

 private:
  enum class State { kIdle, kWriting, kSending, kPublishing };
  enum class Left { kUnfinished, kComplete };
  Mirror(MirrorOptions options, Communicator* communicator, FlightRecorder* recorder);
  bool leads() const;  // of its host, the first rank
  absl::Status know_run(const std::string& checkpoints, bool resumes);
  absl::Status name_run(const std::string& checkpoints) const;
  absl::Status make_folder();
  absl::Status find_hosts();
  absl::Status exchange();
  absl::Status bring(const std::string& folder, const std::string& name, int holder, bool wanted);
  // Of what was left, nothing but the copy of this step, which may be none.
  void keep_only(int64_t step, Left left) const;
  void tell_once(const std::string& text);

  const MirrorOptions options_;
  Communicator* const communicator_;
  FlightRecorder* const recorder_;
  uint64_t run_ = 0;
  std::string folder_;
  std::vector<std::vector<int>> hosts_;  // ranks, rising
  MirrorPartners partners_;
  GroupId group_ = 0;    // of all ranks, for what goes along with steps
  GroupId leaders_ = 0;  // of the hosts' first ranks
  RegionMemory copy_;
  bool told_ = false;
  State state_ = State::kIdle;
  std::unique_ptr<CheckpointWriter> writer_;
  std::shared_future<absl::Status> sent_;  // waits for its thread
};

}  // namespace partita::runtime
