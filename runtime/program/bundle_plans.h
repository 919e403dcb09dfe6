// What a bundle has besides its own programs.
//
// A bundle may have plans for several numbers of ranks ("also": [2, 1] in its manifest): a run takes the one for the
// ranks that it finds. The bundle itself is one; the others are bundles in folders of it. plans/2 has a manifest,
// programs and evidence of its own; the first weights, the executable and the libraries are those of the whole. The
// whole lists plans/2/manifest.json, which stands for the rest.
//
// A plan whose global batch grows ("ramp": [[0, 256], [10000, 1024]]: from which step, samples) has the programs for
// the last number of samples; those for another are a bundle in batches/256, likewise. So it is with a plan whose steps
// take samples of several lengths ("lengths": {"sequence": [512, 1024]}, "length": 1024): lengths/512.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program/bundle_files.h"

namespace partita::runtime {

inline constexpr const char* kPlansName = "plans";
inline constexpr const char* kBatchesName = "batches";
inline constexpr const char* kLengthsName = "lengths";

// That its own program is for.
int64_t ranks_of(const BundleFiles& bundle);
int64_t samples_of(const BundleFiles& bundle);
// The numbers of ranks that there are plans for, the largest first.
std::vector<int64_t> plans_of(const BundleFiles& bundle);

using SharedBundle = std::shared_ptr<const BundleFiles>;
// The plan for so many ranks: the bundle itself, or one within it, which is opened as `trust` asks (null: unproved) and
// not checked yet. Unavailable where there is none, naming those that there are: another start may find other ranks.
absl::StatusOr<SharedBundle> open_plan(const SharedBundle& bundle, int64_t ranks, const BundleTrust* trust);
// The same, checked but for the first weights.
absl::StatusOr<SharedBundle> open_checked_plan(const SharedBundle& bundle, int64_t ranks, const BundleTrust& trust,
                                               int threads);

// A global batch from a step on.
struct RampStep {
  int64_t from = 0, samples = 1;
};
// Of a plan whose global batch changes, in order; else empty. DataLoss where the manifest is damaged.
absl::StatusOr<std::vector<RampStep>> ramp_of(const BundleFiles& plan);
// The bundle for one of the ramp's numbers of samples but the last, opened as `trust` asks (null: unproved) and not
// checked yet.
absl::StatusOr<SharedBundle> open_batch(const BundleFiles& plan, int64_t samples, const BundleTrust* trust);
absl::StatusOr<SharedBundle> open_checked_batch(const BundleFiles& plan, int64_t samples, const BundleTrust& trust,
                                                int threads);

// The lengths of a plan's samples, ascending, where there are several; else empty. DataLoss where the manifest is
// damaged.
absl::StatusOr<std::vector<int64_t>> lengths_of(const BundleFiles& plan);
// The bundle for a length but the largest, opened as `trust` asks (null: unproved) and not checked yet.
absl::StatusOr<SharedBundle> open_length(const BundleFiles& plan, int64_t length, const BundleTrust* trust);
// Of a plan, or of its part for one length.
int64_t length_of(const BundleFiles& bundle);

// The training programs of a plan. DataLoss where they are for another number of ranks than its manifest says.
absl::StatusOr<std::vector<Program>> programs_of(const BundleFiles& plan);

}  // namespace partita::runtime
