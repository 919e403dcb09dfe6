// Which rank writes which part of what all ranks hold together.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/communicate/collective.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// A rank's box of a logical tensor.
struct TensorBox {
  CheckpointTensor tensor;
  const Placement* placement = nullptr;
};

struct TensorOwners {
  std::vector<CheckpointTensor> tensors;  // of all ranks, in the same order everywhere
  std::vector<bool> owned;                // per box of this rank: no lower rank holds the same one
};

// Collective over the communicator's ranks (null: one rank), whose programs may hold different tensors.
absl::StatusOr<TensorOwners> agree_on_owners(const std::vector<TensorBox>& mine, std::span<const int64_t> coordinates,
                                             Communicator* communicator);

}  // namespace partita::runtime
