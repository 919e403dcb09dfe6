// What a measured run says: the trace that `--profile` writes (runtime/execute/step_profile.h), step by step of the
// program.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace partita {

enum class WorkClass { kMatrix, kConvolution, kAttention, kMemory, kUpdate, kCommunication };
inline constexpr int kWorkClasses = 6;
std::string_view work_class_name(WorkClass c);

// A step of the program in one training step, all its micro-batches together.
struct MeasuredStep {
  WorkClass work = WorkClass::kMemory;
  double seconds = 0;           // the lower quartile over the training steps but the first
  double fastest = 0;           // the shortest of them
  double calls = 1;             // micro-batches
  double flops = 0, bytes = 0;  // of one call
};

struct MeasuredRun {
  std::vector<MeasuredStep> steps;
  double step_seconds = 0;  // from the first event of a training step to that of the next: the lower quartile
  double gap_seconds = 0;   // of it, between the events
  double training_steps = 0;
  int64_t ranks = 0, samples_per_step = 0;  // of the whole run; 0: the trace does not say
  // By class: the lower quartile over the training steps of what its steps took together. More than the sum over
  // `steps` where ranks wait for cores: then a few of them are interrupted in every training step, and mostly others.
  std::array<double, kWorkClasses> class_seconds = {};

  double seconds(WorkClass c) const { return class_seconds[static_cast<size_t>(c)]; }
};

// `text`: Chrome's trace event format. InvalidArgument where it is none, or none of ours, or shows fewer than three
// training steps.
absl::StatusOr<MeasuredRun> read_measured_run(std::string_view text, const std::string& file);

// Ranks that do the same work, as one: its compute is that of the median rank, its communication that of the rank that
// waits least for others.
struct MeasuredRanks {
  MeasuredRun run;
  size_t ranks = 1, slowest = 0;             // the latter of these ranks
  double slowest_work = 0, median_work = 0;  // seconds of a training step that are no communication
};
MeasuredRanks as_one(std::vector<MeasuredRun> runs);
// Of the trace of rank `first` and those of the next ranks below `end` that lie beside it, where rank 0's is `path`
// (runtime::trace_of_rank).
absl::StatusOr<MeasuredRanks> read_measured_ranks(const std::string& path, int64_t first, int64_t end);

}  // namespace partita
