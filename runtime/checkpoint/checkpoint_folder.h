// Which checkpoints a folder keeps. Where each host has a folder of its own, the first rank says what is kept, and one
// rank of every other folder does the same there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

// Removes checkpoints but the `keep` newest (0: none is removed), the `keep_best` ones of lowest evaluation loss and
// the newest good one, and `in_use`. Bad ones count for nothing, and go when there is a newer one.
void prune_checkpoints(const std::string& folder, int keep, int keep_best,
                       std::optional<int64_t> in_use = std::nullopt);
// Takes one checkpoint away; nothing where it is gone.
void remove_checkpoint(const std::string& folder, int64_t step);
// Removes what unfinished checkpoints left behind. Not while another run writes into the folder.
void remove_unfinished(const std::string& folder);

// Collective: whether this rank is the lowest of those that see its `folder`, which is made where it is missing. `run`
// is the same text on all ranks, and another in every run.
absl::StatusOr<bool> is_first_of_folder(const std::string& folder, const std::string& run, Communicator& communicator);
// The checkpoints of a folder and the verdicts on them.
std::string describe_folder(const std::string& folder);
// Makes another folder so: removes older checkpoints than the newest of `described` that are not in there, but for
// `in_use`, and writes the verdicts.
void follow_folder(const std::string& folder, std::string_view described, std::optional<int64_t> in_use = std::nullopt);

}  // namespace partita::runtime
