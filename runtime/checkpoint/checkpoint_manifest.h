// What a checkpoint holds: manifest.json of its folder, written last. A folder without one is not a checkpoint.
//
// DIR/step-000000000100/manifest.json         this, with a checksum of its own
//                       states.safetensors    whole logical tensors (layout "shared"), or
//                       good, or bad          what later steps have shown of it
//                       boxes-00003.safetensors  what rank 3 holds (layout "boxes"): tensor "NAME@o0,o1" is the box at
//                                             that offset
// DIR/.step-000000000200.partial              one that is being written, or was when the run was killed
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "runtime/data/order/skipped_samples.h"
#include "runtime/program/program.h"

namespace partita::runtime {

inline constexpr int kCheckpointVersion = 1;
inline constexpr const char* kCheckpointManifest = "manifest.json";
inline constexpr const char* kCheckpointStates = "states.safetensors";

struct CheckpointTensor {
  // As ProgramState has them.
  std::string name;
  StateKind kind = StateKind::kParameter;
  std::string parameter;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t checksum = 0;  // box_checksum() of the whole
};

struct CheckpointManifest {
  std::string model;
  std::string plan;     // mesh of the run that wrote it, "data=4": only to read
  int64_t step = 0;     // optimizer steps taken: the next one to run
  int64_t samples = 0;  // taken from the stream of samples
  int64_t samples_per_step = 0;
  uint64_t seed = 0;
  std::map<std::string, std::string> recipe;  // keys that decide what a step does; empty: not known
  bool shared = true;                         // layout
  int64_t ranks = 1;                          // files of layout "boxes"
  int64_t epoch_samples = 0;                  // of the data; 0: without end, or not known
  std::string data_fingerprint;               // of its files (runtime/data/fingerprint.h); "": not known
  std::string data;                           // description of the data and their order; another one is warned of
  std::map<std::string, double> metrics;      // "loss", "evaluation_loss": as they were
  std::vector<double> losses;                 // the newest, that a spike is measured against
  std::vector<SkippedSamples> skipped;        // of the stream of samples, rising: a rollback leaves them out
  std::vector<CheckpointTensor> tensors;
};

// A fingerprint of the model: SHA-256 over the tensors' names, kinds, dtypes and shapes.
std::string model_fingerprint(const std::vector<CheckpointTensor>& tensors);

std::string format_manifest(const CheckpointManifest& manifest);
// DataLoss (damaged, fields missing) or FailedPrecondition (a newer version); `path` is for the message.
absl::StatusOr<CheckpointManifest> parse_manifest(std::string_view text, const std::string& path);
absl::StatusOr<CheckpointManifest> read_manifest(const std::string& folder);

// What later steps have shown of a checkpoint: a small file beside its manifest, `good` or `bad`, that says why.
enum class CheckpointVerdict {
  kNone,  // nothing yet
  kGood,  // a step that began from it was finite
  kBad,   // the step that began from it was not
};
CheckpointVerdict verdict_on(const std::string& folder, std::string* why = nullptr);
// Best effort: a verdict that cannot be written is not known.
void write_verdict(const std::string& folder, CheckpointVerdict verdict, const std::string& why);

// "step-000000000100"
std::string checkpoint_name(int64_t step);
// The step of a name that checkpoint_name() gives.
std::optional<int64_t> checkpoint_step(std::string_view name);
// Steps of the complete checkpoints in a folder, rising; none where the folder is missing. An error where the system
// does not show it, or what is in one of them (no permission, a disk or a server that fails): such a folder may hold
// newer ones, and what goes on from a folder must not take it for an empty one.
absl::StatusOr<std::vector<int64_t>> find_checkpoints(const std::string& folder);
// Those of them that can be seen, for what only tidies or tells.
std::vector<int64_t> list_checkpoints(const std::string& folder);
// `path` itself where it is one checkpoint, else the newest one in it that is not bad. NotFound, and as above.
absl::StatusOr<std::string> find_checkpoint(const std::string& path);

// States that a checkpoint keeps: all but accumulators.
bool is_kept(const ProgramState& state);
CheckpointTensor kept_tensor(const ProgramState& state);
std::vector<CheckpointTensor> kept_tensors(const Program& program);

// Whether a run goes on without the checkpoint's value of this state: the loss scale, which a run in another precision
// lacks, and what error feedback keeps of compressed gradients, which is of one layout and number of ranks.
bool starts_anew(const CheckpointTensor& wanted, const CheckpointTensor* found);

// InvalidArgument with names and shapes unless the checkpoint has every wanted tensor in its shape (other float formats
// are converted), but for what starts anew. `all`: and no others.
absl::Status check_same_model(const std::vector<CheckpointTensor>& wanted, const std::vector<CheckpointTensor>& found,
                              const std::string& path, bool all);

}  // namespace partita::runtime
