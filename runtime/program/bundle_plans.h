// A bundle may have plans for several numbers of ranks ("also": [2, 1] in its manifest): a run takes the one for the
// ranks that it finds. The bundle itself is one; the others are bundles in folders of it. plans/2 has a manifest,
// programs and evidence of its own; the first weights, the executable and the libraries are those of the whole. The
// whole lists plans/2/manifest.json, which stands for the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program/bundle_files.h"

namespace partita::runtime {

inline constexpr const char* kPlansName = "plans";

// That its own program is for.
int64_t ranks_of(const BundleFiles& bundle);
// The numbers of ranks that there are plans for, the largest first.
std::vector<int64_t> plans_of(const BundleFiles& bundle);

using SharedBundle = std::shared_ptr<const BundleFiles>;
// The plan for so many ranks: the bundle itself, or one within it, which is opened as `trust` asks (null: unproved) and
// not checked yet. Unavailable where there is none, naming those that there are: another start may find other ranks.
absl::StatusOr<SharedBundle> open_plan(const SharedBundle& bundle, int64_t ranks, const BundleTrust* trust);
// The same, checked but for the first weights.
absl::StatusOr<SharedBundle> open_checked_plan(const SharedBundle& bundle, int64_t ranks, const BundleTrust& trust,
                                               int threads);

// The training programs of a plan. DataLoss where they are for another number of ranks than its manifest says.
absl::StatusOr<std::vector<Program>> programs_of(const BundleFiles& plan);

}  // namespace partita::runtime
