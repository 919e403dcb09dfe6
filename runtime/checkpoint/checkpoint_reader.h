// Reads a checkpoint's tensors by boxes, whichever plan wrote it.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/communicate/collective.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/program.h"

namespace partita::runtime {

class CheckpointReader {
 public:
  // Of one checkpoint's folder. DataLoss where a file is damaged or missing, FailedPrecondition for a newer version,
  // NotFound where there is no checkpoint. Contents are checked as they are loaded.
  static absl::StatusOr<CheckpointReader> open(const std::string& folder);

  const CheckpointManifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }
  // nullptr when absent.
  const CheckpointTensor* find(std::string_view name) const;
  // A box in the checkpoint's own dtype, packed row-major. Thread-safe.
  absl::Status read(const CheckpointTensor& tensor, std::span<const int64_t> offset, std::span<const int64_t> extent,
                    std::span<std::byte> out) const;
  // The whole tensor, checked against its checksum.
  absl::StatusOr<std::vector<std::byte>> read_whole(const CheckpointTensor& tensor) const;
  absl::Status damaged(const CheckpointTensor& tensor) const;

 private:
  struct Box {
    size_t file;
    std::string key;
    std::vector<int64_t> offset, extent;
  };
  absl::Status index_boxes();
  absl::Status check_shared() const;

  std::string folder_;
  CheckpointManifest manifest_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> index_;            // into manifest_.tensors
  std::map<std::string, std::vector<Box>, std::less<>> boxes_;  // layout "boxes": distinct, disjoint boxes
};

// Puts this rank's part of each state of `program` to the checkpoint's values, converted between float formats where
// the precision differs; a frozen value in memory stays where it rounds to what the checkpoint has in fewer bits.
// `parameters_only`: parameters, frozen and running values, others stay as they are. `owned`, by state: of the ranks
// that hold the same box, one adds it to the checksum. Collective. DataLoss on all ranks where a checksum does not fit.
absl::Status load_states(const Program& program, std::span<const int64_t> coordinates, const std::vector<bool>& owned,
                         const CheckpointReader& reader, bool parameters_only, Communicator* communicator,
                         const std::function<std::span<std::byte>(const Operand&)>& memory);

// "NAME@3,0": a box's name in layout "boxes".
std::string box_key(const std::string& name, std::span<const int64_t> offset);
std::string box_file(int64_t rank);

}  // namespace partita::runtime
