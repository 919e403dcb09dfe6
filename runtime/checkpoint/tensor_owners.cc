#include "runtime/checkpoint/tensor_owners.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/status.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

// Where stages hold different tensors, ranks tell of those that no rank before them had, one rank after the other.
absl::StatusOr<std::vector<CheckpointTensor>> tensors_of_all(const std::vector<CheckpointTensor>& mine,
                                                             Communicator* communicator) {
  std::vector<CheckpointTensor> all;
  std::set<std::string> known;
  auto is_new = [&](const CheckpointTensor& t) { return known.count(t.name) == 0; };
  while (true) {
    int64_t next = std::any_of(mine.begin(), mine.end(), is_new) ? communicator->rank() : INT64_MAX;
    PARTITA_RETURN_IF_ERROR(all_reduce(communicator, {&next, 1}, ReduceOp::kMin, "list of tensors"));
    if (next == INT64_MAX) return all;
    CheckpointManifest told;
    std::copy_if(mine.begin(), mine.end(), std::back_inserter(told.tensors), is_new);
    std::string text = format_manifest(told);
    PARTITA_RETURN_IF_ERROR(broadcast_text(communicator, text, "list of tensors", static_cast<int>(next)));
    PARTITA_ASSIGN_OR_RETURN(told, parse_manifest(text, "a rank's list of tensors"));
    for (CheckpointTensor& t : told.tensors) {
      known.insert(t.name);
      all.push_back(std::move(t));
    }
  }
}

// Of the ranks that hold the same box of a tensor, the lowest owns it.
absl::StatusOr<std::vector<bool>> lowest_holders(const std::vector<TensorBox>& mine,
                                                 const std::vector<CheckpointTensor>& tensors,
                                                 std::span<const int64_t> coordinates, Communicator* communicator) {
  std::map<std::string_view, size_t> index;
  for (size_t k = 0; k < tensors.size(); ++k) index[tensors[k].name] = k;
  std::vector<int64_t> boxes(tensors.size(), 0);
  for (const TensorBox& b : mine) {
    std::string box = "box";
    for (int64_t offset : box_offset(*b.placement, coordinates)) append(box, " ", offset);
    boxes[index.at(b.tensor.name)] = static_cast<int64_t>(checksum64(as_byte_span(box)) | 1);
  }
  PARTITA_ASSIGN_OR_RETURN(std::vector<int64_t> all, all_gather(communicator, boxes, "owners of tensors"));
  std::vector<bool> owned;
  for (const TensorBox& b : mine) {
    const size_t k = index.at(b.tensor.name);
    bool first = true;
    for (size_t r = 0; first && r < static_cast<size_t>(communicator->rank()); ++r)
      first = all[r * boxes.size() + k] != boxes[k];
    owned.push_back(first);
  }
  return owned;
}

}  // namespace

absl::StatusOr<TensorOwners> agree_on_owners(const std::vector<TensorBox>& mine, std::span<const int64_t> coordinates,
                                             Communicator* communicator) {
  TensorOwners out;
  for (const TensorBox& b : mine) out.tensors.push_back(b.tensor);
  std::string first = model_fingerprint(out.tensors);
  const std::string own = first;
  PARTITA_RETURN_IF_ERROR(broadcast_text(communicator, first, "tensors of the first rank"));
  int64_t differ = first == own ? 0 : 1;
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator, {&differ, 1}, ReduceOp::kMax, "tensors of the first rank"));
  if (differ == 0) {  // mostly they are the same
    for (const TensorBox& b : mine) out.owned.push_back(owns_box(*b.placement, coordinates));
    return out;
  }
  PARTITA_ASSIGN_OR_RETURN(out.tensors, tensors_of_all(out.tensors, communicator));
  PARTITA_ASSIGN_OR_RETURN(out.owned, lowest_holders(mine, out.tensors, coordinates, communicator));
  return out;
}

}  // namespace partita::runtime
