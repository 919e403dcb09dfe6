// Small exchanges between all ranks of a run. A null communicator is a run of one rank: nothing to do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

// The places of those that differ from what most have; of equally many, from what the first of them has.
template <typename T>
std::vector<int> minority(std::span<const T> all) {
  size_t majority = 0;
  int64_t most = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    const int64_t votes = std::count(all.begin(), all.end(), all[k]);
    if (votes > most) majority = k, most = votes;
  }
  std::vector<int> others;
  for (size_t k = 0; k < all.size(); ++k) {
    if (!(all[k] == all[majority])) others.push_back(static_cast<int>(k));
  }
  return others;
}

// In place, over all ranks.
absl::Status all_reduce(Communicator* communicator, std::span<int64_t> values, ReduceOp reduce, std::string_view label);
// `count` elements of a group's root, by its rank in the group, to the others' `data`.
absl::Status broadcast(Communicator* communicator, GroupId group, DType dtype, int64_t count, void* data, int root,
                       std::string_view label);
// The root's text to all.
absl::Status broadcast_text(Communicator* communicator, std::string& text, std::string_view label, int root = 0);
// Equally many values of each rank, in rank order.
absl::StatusOr<std::vector<int64_t>> all_gather(Communicator* communicator, std::span<const int64_t> values,
                                                std::string_view label);
// Ok where every rank's is; else this rank's own error, or one of a failed rank's kind that names it and says why.
// Unlike an abort it leaves the communicator working.
absl::Status all_ok(Communicator* communicator, const absl::Status& mine, std::string_view label);
// Whether an error is another rank's, of which this one was told.
bool is_of_another(const absl::Status& status);

}  // namespace partita::runtime
