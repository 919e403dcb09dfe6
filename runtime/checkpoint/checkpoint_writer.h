// Writes one checkpoint of all ranks: the states are copied at once, then written by a thread of its own while training
// goes on.
//
//   begin()    collective: rank 0 makes the folder and the file (a full disk is found here), every rank copies what it
//              owns and starts writing, with several threads
//   written()  local: whether this rank's part has reached the disk
//   commit()   collective, once all ranks are: exchanges checksums; rank 0 then writes the manifest and renames the
//              folder, again on a thread
//
// Its threads tell the rank's flight record as they get on: who looks after the rank sees a disk that hangs.
// A folder appears under its name only when it is whole. What is left of an unfinished one goes with the next run.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/communicate/collective.h"
#include "runtime/files/safetensors.h"
#include "runtime/kernel/region_memory.h"
#include "runtime/program/program.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {

// A state as this rank holds it.
struct HeldState {
  size_t tensor = 0;  // into CheckpointManifest::tensors
  const Placement* placement = nullptr;
  std::span<const std::byte> memory;
  bool owned = true;  // of the ranks that hold the same box, one does
};

class CheckpointWriter {
 public:
  // `manifest` holds the tensors of all ranks' programs, in the same order everywhere; `shared`: all ranks see
  // `folder`; `copy`: memory for the copy of the states, which grows to their size, and is kept from one checkpoint to
  // the next, since a page that is new costs more than what is copied into it; `recorder` (may be null): this rank's.
  CheckpointWriter(std::string folder, bool shared, Communicator* communicator, RegionMemory& copy,
                   FlightRecorder* recorder = nullptr);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Of a copy that no rank has to load alone: each writes but what it owns.
  void write_owned_only() { owned_only_ = true; }
  // Fails on all ranks or none; only the rank whose error it is says why, others Unavailable.
  absl::Status begin(CheckpointManifest manifest, const std::vector<HeldState>& states,
                     std::span<const int64_t> coordinates);
  bool written() const { return written_within(std::chrono::milliseconds(0)); }
  // Waits for it, at most so long.
  bool written_within(std::chrono::milliseconds most) const {
    return !work_.valid() || work_.wait_for(most) == std::future_status::ready;
  }
  // Of the thread's work so far, for which it waits.
  absl::Status status() const { return work_.valid() ? work_.get() : absl::OkStatus(); }
  // Call only when written() with an ok status on all ranks.
  absl::Status commit();
  // Gives up: removes what there is. Call when some rank's status is not ok.
  void discard();
  // The folder until it is whole.
  std::string partial() const;
  const CheckpointManifest& manifest() const { return manifest_; }
  // From begin() until it was complete under its name. Call when that is so.
  double seconds() const { return seconds_; }

 private:
  struct Piece {
    size_t tensor;
    std::vector<int64_t> offset, extent;
    size_t at, bytes;
  };
  bool is_first() const { return communicator_ == nullptr || communicator_->rank() == 0; }
  void start(absl::Status (CheckpointWriter::*work)());
  absl::Status create();
  std::vector<TensorInfo> infos() const;
  absl::Status place_pieces();
  absl::Status open_file();
  absl::Status copy_states(const std::vector<HeldState>& states, std::span<const int64_t> coordinates);
  absl::Status write_pieces();
  absl::Status publish();

  const std::string folder_;
  const bool shared_;
  bool owned_only_ = false;
  Communicator* const communicator_;
  CheckpointManifest manifest_;
  std::vector<Piece> pieces_;
  RegionMemory& buffer_;
  std::vector<int64_t> sums_;  // of this rank's part, then of all
  std::vector<bool> owned_;
  std::unique_ptr<SafetensorsWriter> file_;
  const std::function<void()> got_on_;
  FlightRecorder* const recorder_;
  std::chrono::steady_clock::time_point begun_;
  double seconds_ = 0;
  std::shared_future<absl::Status> work_;  // of the thread: goes first, which waits for it
};

}  // namespace partita::runtime
