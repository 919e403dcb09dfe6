// Tokens in shards: windows are cut within each shard, so that a sample is found without the shards before it.
#include <mutex>

#include "base/box.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/fingerprint.h"
#include "runtime/data/shards/open_shards.h"
#include "runtime/data/token_windows.h"

namespace partita::runtime {
namespace {

class ShardedReader : public SampleReader {
 public:
  ShardedReader(std::shared_ptr<ShardStore> store, OpenShards<SampleReader>::Open open,
                OpenShards<SampleReader>::Count count)
      : shards_(std::move(store), std::move(open), std::move(count)) {}

  // Opens the first shard that holds a sample: what is wrong with the settings is found now.
  absl::Status begin() {
    PARTITA_ASSIGN_OR_RETURN(const auto first, shards_.find(0));
    for (const std::string& line : first.part->told()) told_.push_back(line);
    return absl::OkStatus();
  }

  int64_t samples() const override { return shards_.samples(); }
  int64_t shuffle_window() const override { return shards_.store().index().window; }
  void give_up() const override { shards_.store().give_up(); }
  std::string describe() const override { return cat("shards in ", quote(shards_.store().place(), 1000)); }
  std::string locate(int64_t sample, uint64_t epoch) const override {
    const auto place = shards_.find(sample);
    return place.ok() ? place->part->locate(place->sample, epoch) : cat(describe(), ": sample ", sample);
  }
  std::string fingerprint() const override {
    const ShardIndex index = shards_.store().index();
    if (!index.complete) return "";
    std::string all;
    for (const Shard& s : index.shards) append(all, s.sha256, " ");
    return fingerprint_of(as_byte_span(all));
  }
  std::vector<std::string> told() const override {
    const ShardIndex index = shards_.store().index();
    int64_t tokens = 0;
    for (const Shard& s : index.shards) tokens += s.items;
    std::vector<std::string> lines = {cat(describe(), ": ", tokens, " tokens in ", index.shards.size(), " of them",
                                          index.complete ? "" : ", and more to come")};
    lines.insert(lines.end(), told_.begin(), told_.end());
    return lines;
  }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const size_t bytes = out.size() / static_cast<size_t>(std::max<int64_t>(run.count, 1));
    for (int64_t done = 0; done < run.count;) {
      PARTITA_ASSIGN_OR_RETURN(const auto place, shards_.find(run.first + done));
      const int64_t count = std::min(run.count - done, place.rest);
      PARTITA_RETURN_IF_ERROR(
          place.part->read({place.sample, count, run.epoch}, input,
                           out.subspan(static_cast<size_t>(done) * bytes, static_cast<size_t>(count) * bytes)));
      done += count;
    }
    return absl::OkStatus();
  }

 private:
  mutable OpenShards<SampleReader> shards_;
  std::vector<std::string> told_;  // of the first shard
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> open_sharded_reader(const DataConfig& config,
                                                                  const std::vector<InputSpec>& inputs) {
  PARTITA_ASSIGN_OR_RETURN(std::shared_ptr<ShardStore> store, ShardStore::open(config.path, config.cache));
  const ShardIndex index = store->index();
  if (index.kind != DataKind::kTokens)
    return absl::InvalidArgumentError(
        cat("data ", quote(config.path, 1000), " are shards of records; say kind: webdataset under data"));
  if (config.documents == DocumentMode::kPack || config.documents == DocumentMode::kPad)
    return absl::InvalidArgumentError(
        cat("data ", quote(config.path, 1000), ": documents: ", enum_name(config.documents),
            " needs to know every document before the first sample, and shards come one by one; expected join or ",
            "separate"));
  PARTITA_ASSIGN_OR_RETURN(const TokenWindows windows, token_windows(config, inputs));
  DataConfig own = config;
  if (own.dtype != DType::kInvalid && own.dtype != index.dtype)
    return absl::InvalidArgumentError(cat("data ", quote(config.path, 1000), ": dtype ", dtype_name(own.dtype),
                                          " is asked for, and the index says ", dtype_name(index.dtype)));
  own.dtype = index.dtype;
  auto first = std::make_shared<std::once_flag>();
  auto reader = std::make_unique<ShardedReader>(
      std::move(store),
      [own, inputs, first](const std::string& path) {
        DataConfig shard = own;
        shard.path = path;
        if (path.ends_with(".npy")) shard.dtype = DType::kInvalid;
        // Of thousands of shards, one is looked at as a whole; each sample's ids are held against the vocabulary.
        bool checks = false;
        std::call_once(*first, [&] { checks = true; });
        shard.check_ids = own.check_ids && checks;
        return open_token_reader(shard, inputs);
      },
      [windows](const Shard& shard) { return windows.count(shard.items); });
  PARTITA_RETURN_IF_ERROR(reader->begin());
  return reader;
}

}  // namespace partita::runtime
