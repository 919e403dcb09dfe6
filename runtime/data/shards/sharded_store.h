// Records in shards, in a folder or in an object store, from where they are fetched as they are needed.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/data/records/record_store.h"
#include "runtime/data/shards/shard_store.h"

namespace partita::runtime {

// The errors of ShardStore::open() and open_tar_store(); InvalidArgument where the shards hold no records.
absl::StatusOr<std::unique_ptr<RecordStore>> open_sharded_store(const std::string& place, const DataCache& cache);

}  // namespace partita::runtime
