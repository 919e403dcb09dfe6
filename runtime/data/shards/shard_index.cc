#include "runtime/data/shards/shard_index.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kLargestIndex = 1 << 30;

// A relative path that stays where it is.
bool stays_below(const std::string& name) {
  if (name.empty() || name.starts_with('/')) return false;
  const fs::path path(name);
  return std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

}  // namespace

bool is_sharded(const std::string& place) {
  std::error_code ignored;
  return place.starts_with("s3://") || fs::is_regular_file(fs::path(place) / kShardIndexName, ignored);
}

bool is_shard_name(const std::string& name) {
  return name.ends_with(".bin") || name.ends_with(".npy") || name.ends_with(".tar");
}

std::optional<DataKind> kind_of_shards(const std::string& folder) {
  if (folder.starts_with("s3://") || !is_sharded(folder)) return std::nullopt;
  const auto file = MappedFile::open(cat(folder, "/", kShardIndexName));
  const auto index = file.ok() ? parse_shard_index(file->text(), folder) : file.status();
  return index.ok() ? std::optional(index->kind) : std::nullopt;
}

absl::StatusOr<ShardIndex> parse_shard_index(std::string_view text, std::string_view who) {
  const auto damaged = [&](std::string_view why) { return absl::DataLossError(cat(who, " is damaged: ", why)); };
  ShardIndex index;
  std::set<std::string> names;
  try {
    const json j = json::parse(text);
    const auto kind = parse_enum<DataKind>(j.at("kind").get<std::string>());
    if (kind != DataKind::kTokens && kind != DataKind::kWebDataset)
      return damaged("\"kind\": expected tokens or webdataset");
    index.kind = *kind;
    index.complete = j.at("complete").get<bool>();
    index.window = j.value("window", index.window);
    if (index.window < 1) return damaged("\"window\": expected at least 1");
    if (index.kind == DataKind::kTokens) {
      index.dtype = parse_dtype(j.at("dtype").get<std::string>());
      if (!is_integer(index.dtype)) return damaged("\"dtype\" is no type of integers");
    }
    for (const json& s : j.at("shards")) {
      Shard shard{s.at("name").get<std::string>(), s.at("bytes").get<int64_t>(), s.at("items").get<int64_t>(),
                  s.at("sha256").get<std::string>()};
      if (!stays_below(shard.name) || !is_shard_name(shard.name) || !names.insert(shard.name).second ||
          shard.bytes < 0 || shard.items < 0 || shard.items > shard.bytes || !sha256_from_hex(shard.sha256))
        return damaged(cat("shard ", index.shards.size(), ", ", quote(shard.name)));
      index.shards.push_back(std::move(shard));
    }
  } catch (const json::exception& e) {
    return damaged(e.what());
  }
  return index;
}

std::string shard_index_text(const ShardIndex& index) {
  json j = {{"kind", enum_name(index.kind)},
            {"complete", index.complete},
            {"window", index.window},
            {"shards", json::array()}};
  if (index.kind == DataKind::kTokens) j["dtype"] = dtype_name(index.dtype);
  for (const Shard& s : index.shards)
    j["shards"].push_back({{"name", s.name}, {"bytes", s.bytes}, {"items", s.items}, {"sha256", s.sha256}});
  return j.dump(1) + "\n";
}

absl::StatusOr<ShardIndex> read_shard_index(ObjectStore& store) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> found, store.list(kShardIndexName));
  const auto object =
      std::find_if(found.begin(), found.end(), [](const ObjectInfo& o) { return o.name == kShardIndexName; });
  const std::string who = quote(cat(store.place(), "/", kShardIndexName), 1000);
  if (object == found.end())
    return absl::NotFoundError(
        cat(who, " is not there; `partita data index ", store.place(), "` makes it from the shards"));
  if (object->bytes > kLargestIndex) return absl::DataLossError(cat(who, " has ", object->bytes, " bytes"));
  std::string text(static_cast<size_t>(object->bytes), '\0');
  PARTITA_RETURN_IF_ERROR(store.read(kShardIndexName, 0, std::as_writable_bytes(std::span(text))));
  return parse_shard_index(text, who);
}

}  // namespace partita::runtime
