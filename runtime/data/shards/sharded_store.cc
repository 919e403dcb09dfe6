#include "runtime/data/shards/sharded_store.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/shards/open_shards.h"

namespace partita::runtime {
namespace {

class ShardedStore : public RecordStore {
 public:
  ShardedStore(std::shared_ptr<ShardStore> store, OpenShards<RecordStore>::Open open)
      : shards_(std::move(store), std::move(open), [](const Shard& s) { return s.items; }) {}

  absl::Status begin() { return shards_.find(0).status(); }
  int64_t records() const override { return shards_.samples(); }
  int64_t shuffle_window() const override { return shards_.store().index().window; }
  void give_up() const override { shards_.store().give_up(); }
  std::string describe() const override { return cat("archives in ", quote(shards_.store().place(), 1000)); }
  std::string locate(int64_t record) const override {
    const auto place = shards_.find(record);
    return place.ok() ? place->part->locate(place->sample) : cat(describe(), ": record ", record);
  }
  std::vector<std::string> fields(int64_t record) const override {
    const auto place = shards_.find(record);
    return place.ok() ? place->part->fields(place->sample) : std::vector<std::string>();
  }
  std::optional<int64_t> folder_class(int64_t) const override { return std::nullopt; }
  std::vector<std::string> classes() const override { return {}; }
  absl::StatusOr<FieldBytes> field(int64_t record, std::string_view suffix) const override {
    PARTITA_ASSIGN_OR_RETURN(const auto place, shards_.find(record));
    return place.part->field(place.sample, suffix);
  }

 private:
  mutable OpenShards<RecordStore> shards_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RecordStore>> open_sharded_store(const std::string& place, const DataCache& cache) {
  PARTITA_ASSIGN_OR_RETURN(std::shared_ptr<ShardStore> store, ShardStore::open(place, cache));
  if (store->index().kind != DataKind::kWebDataset)
    return absl::InvalidArgumentError(
        cat("data ", quote(place, 1000), " are shards of tokens; say kind: tokens under data"));
  auto sharded = std::make_unique<ShardedStore>(std::move(store), open_tar_store);
  PARTITA_RETURN_IF_ERROR(sharded->begin());
  return sharded;
}

}  // namespace partita::runtime
