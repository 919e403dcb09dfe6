// Makes the index of a dataset in shards (runtime/data/shards/shard_index.h) from what lies there.
#pragma once

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "runtime/data/shards/shard_index.h"
#include "runtime/objects/object_store.h"

namespace partita::runtime {

struct NewShards {
  DType dtype = DType::kInvalid;  // of raw ids; others tell it themselves
  bool complete = true;           // no more will come
  int64_t window = 0;             // to shuffle within; 0: as the index has it
};

// Writes the index: each .bin, .npy (tokens) or .tar that it does not list is read once, and comes behind those that it
// lists, in the order of their names. Files of a hidden name are not there yet. InvalidArgument (nothing there, several
// kinds or types, raw ids without a type, a complete index that would grow, another window), DataLoss (a listed shard
// is gone or has another size).
absl::StatusOr<ShardIndex> update_shard_index(ObjectStore& store, const NewShards& what);

}  // namespace partita::runtime
