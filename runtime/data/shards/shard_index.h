// A dataset in many files, its shards: what the index beside them says. It is the only list of them, so that one that
// grows has one order for every rank and for every resumed run.
//
//   {"kind": "tokens", "dtype": "u16", "complete": true, "window": 65536,
//    "shards": [{"name": "part-000.bin", "bytes": 4000000, "items": 2000000, "sha256": "9f86…"}, …]}
//
// `window`: samples are shuffled among so many that follow one another, 65536 where it is not said: about as many
// shards are needed at once as hold them. `items`: tokens, or records of an archive. `complete`: false where shards
// will be added at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/kinds.h"
#include "runtime/objects/object_store.h"

namespace partita::runtime {

inline constexpr const char* kShardIndexName = "index.json";

struct Shard {
  std::string name;  // below the place
  int64_t bytes = 0, items = 0;
  std::string sha256;  // 64 hex digits
  bool operator==(const Shard&) const = default;
};

struct ShardIndex {
  DataKind kind = DataKind::kTokens;  // or kWebDataset
  DType dtype = DType::kInvalid;      // of tokens
  bool complete = true;
  int64_t window = 1 << 16;
  std::vector<Shard> shards;
  bool operator==(const ShardIndex&) const = default;
};

// Whether data are shards: in an object store, or in a folder with an index.
bool is_sharded(const std::string& place);
// By the index of a folder; nullopt where there is none that can be read, and for object stores, which are not asked.
std::optional<DataKind> kind_of_shards(const std::string& folder);

// `who`: "'data/index.json'". DataLoss, also where a name leads out of the place.
absl::StatusOr<ShardIndex> parse_shard_index(std::string_view text, std::string_view who);
std::string shard_index_text(const ShardIndex& index);

// Whether a file of this name is one.
bool is_shard_name(const std::string& name);

// The index of what lies in a place; NotFound where there is none, with the command that makes one.
absl::StatusOr<ShardIndex> read_shard_index(ObjectStore& store);

}  // namespace partita::runtime
