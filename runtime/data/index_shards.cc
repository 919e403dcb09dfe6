#include "runtime/data/index_shards.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "runtime/data/records/record_store.h"
#include "runtime/data/token_stream.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

bool is_array(const std::string& name) { return name.ends_with(".npy"); }
bool is_archive(const std::string& name) { return name.ends_with(".tar"); }

// Where an object lies on this host: itself, of a folder, or its copy in `room`.
absl::StatusOr<std::string> bring(ObjectStore& store, const ObjectInfo& object, const TemporaryFolder& room) {
  if (!store.place().starts_with("s3://")) return cat(store.place(), "/", object.name);
  const std::string path = room.file(fs::path(object.name).filename().string());
  PARTITA_RETURN_IF_ERROR(fetch_object(store, object, path));
  return path;
}

// What a shard holds, and the type of its tokens.
absl::StatusOr<std::pair<Shard, DType>> look_at(ObjectStore& store, const std::vector<ObjectInfo>& all,
                                                const ObjectInfo& object, DType said) {
  PARTITA_ASSIGN_OR_RETURN(const TemporaryFolder room, TemporaryFolder::create("shards to look at"));
  PARTITA_ASSIGN_OR_RETURN(const std::string path, bring(store, object, room));
  Shard shard{object.name, object.bytes};
  DType dtype = DType::kInvalid;
  if (is_archive(object.name)) {
    PARTITA_ASSIGN_OR_RETURN(const auto records, open_tar_store(path));
    shard.items = records->records();
  } else {
    const std::string pair = object.name.substr(0, object.name.size() - 4) + ".idx";
    const auto index = std::find_if(all.begin(), all.end(), [&](const ObjectInfo& o) { return o.name == pair; });
    if (index != all.end()) PARTITA_RETURN_IF_ERROR(bring(store, *index, room).status());
    if (!is_array(object.name) && index == all.end() && said == DType::kInvalid)
      return absl::InvalidArgumentError(
          cat(quote(object.name), " holds raw ids, and nothing tells their type; say --dtype uint16, or which it is"));
    DataConfig config;
    config.path = path;
    config.check_ids = false;  // a run does, with the model's vocabulary
    if (index == all.end()) config.dtype = said;
    PARTITA_ASSIGN_OR_RETURN(const TokenStream stream, open_token_stream(config));
    shard.items = stream.tokens.shape[0];
    dtype = stream.tokens.dtype;
  }
  PARTITA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  if (file.size() != object.bytes)
    return absl::DataLossError(cat(quote(object.name), " is being written: it had ", object.bytes, " bytes and has ",
                                   file.size(), "; write shards under a hidden name and rename them"));
  shard.sha256 = sha256_hex(file.bytes());
  return std::pair{shard, dtype};
}

}  // namespace

absl::StatusOr<ShardIndex> update_shard_index(ObjectStore& store, const NewShards& what) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> all, store.list(""));
  std::map<std::string, int64_t> there;
  for (const ObjectInfo& o : all) {
    if (is_packed_archive(o.name))
      return absl::InvalidArgumentError(cat("archive ", quote(cat(store.place(), "/", o.name), 1000),
                                            " is compressed, so that no sample can be found alone; unpack it to .tar, "
                                            "or move it elsewhere"));
    if (is_shard_name(o.name) && !fs::path(o.name).filename().string().starts_with('.')) there[o.name] = o.bytes;
  }
  ShardIndex index;
  const auto listed = [](const ObjectInfo& o) { return o.name == kShardIndexName; };
  const bool begun = std::any_of(all.begin(), all.end(), listed);
  if (begun) {
    PARTITA_ASSIGN_OR_RETURN(index, read_shard_index(store));
  }
  if (begun && what.window > 0 && what.window != index.window)
    return absl::InvalidArgumentError(cat(quote(store.place(), 1000), " is shuffled within ", index.window,
                                          " samples, which runs have gone by; remove the index to begin anew"));
  if (what.window > 0) index.window = what.window;
  for (const Shard& s : index.shards) {
    const auto object = there.find(s.name);
    if (object == there.end() || object->second != s.bytes)
      return absl::DataLossError(cat(quote(cat(store.place(), "/", s.name), 1000), ", which the index lists with ",
                                     s.bytes, " bytes, ",
                                     object == there.end() ? "is gone" : cat("has ", object->second),
                                     "; runs have counted its samples: put it back, or remove the index"));
    there.erase(object);
  }
  if (begun && index.complete && !there.empty())
    return absl::InvalidArgumentError(cat(quote(store.place(), 1000), " has an index that calls it complete, and ",
                                          there.size(), " more shards (", quote(there.begin()->first),
                                          "); runs end an epoch with those of the index: remove it to begin anew"));
  for (const auto& [name, bytes] : there) {
    PARTITA_ASSIGN_OR_RETURN(auto shard, look_at(store, all, {name, bytes}, what.dtype));
    const DataKind kind = is_archive(name) ? DataKind::kWebDataset : DataKind::kTokens;
    if (index.shards.empty()) index.kind = kind, index.dtype = shard.second;
    if (index.kind != kind || index.dtype != shard.second)
      return absl::InvalidArgumentError(
          cat(quote(name), " holds ", kind == DataKind::kTokens ? dtype_name(shard.second) : "records",
              ", the shards before it ", index.kind == DataKind::kTokens ? dtype_name(index.dtype) : "records",
              "; the shards of a place are of one kind"));
    index.shards.push_back(std::move(shard.first));
  }
  if (index.shards.empty())
    return absl::InvalidArgumentError(cat(quote(store.place(), 1000), " holds no .bin, .npy or .tar"));
  index.complete = what.complete;
  const std::string text = shard_index_text(index);
  PARTITA_RETURN_IF_ERROR(store.put(kShardIndexName, std::as_bytes(std::span(text))));
  return index;
}

}  // namespace partita::runtime
