// Datasets in shards: in folders, in folders that grow, in an object store.
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "base/checksum.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/data_source.h"
#include "runtime/data/index_shards.h"
#include "runtime/data/order/sample_order.h"
#include "tests/runtime/objects/s3_server.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<InputSpec>& inputs() {
  static const std::vector<InputSpec> kInputs = {{"input_ids", DType::kI64, {4}}, {"labels", DType::kI64, {4}}};
  return kInputs;
}

// Ids first, first + 1, …
std::string ids(int first, int count) {
  std::vector<uint16_t> values;
  for (int k = 0; k < count; ++k) values.push_back(static_cast<uint16_t>(first + k));
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]};
}

// An empty status, where there was no error.
std::string message(const absl::Status& status) { return std::string(status.message()); }

absl::StatusOr<ShardIndex> index_folder(const std::string& folder, const NewShards& what = {.dtype = DType::kU16}) {
  PARTITA_ASSIGN_OR_RETURN(const auto store, open_object_store(folder, {}, nullptr));
  return update_shard_index(*store, what);
}

std::unique_ptr<DataSource> open(const DataConfig& config, int64_t batch = 1) {
  auto source = DataSource::open(config, inputs(), batch);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? *std::move(source) : nullptr;
}

// The first id of a step's only sample.
absl::StatusOr<int64_t> first_id(const DataSource& source, int64_t step, int input = 0) {
  std::vector<int64_t> out(4);
  PARTITA_RETURN_IF_ERROR(source.fetch(step, 0, 1, input, std::as_writable_bytes(std::span(out))));
  for (size_t k = 1; k < 4; ++k) EXPECT_EQ(out[k], out[0] + static_cast<int64_t>(k));
  return out[0];
}

DataConfig tokens(const std::string& place) {
  DataConfig config{.kind = DataKind::kTokens, .path = place};
  config.vocabulary = 2000;
  return config;
}

TEST(SampleOrder, IsAPermutationWithinItsWindows) {
  for (const int64_t samples : {1, 7, 64, 100}) {
    for (const int64_t window : {0, 1, 8, 64, 1000}) {
      const SampleOrder order(samples, true, window, 5);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::set<int64_t> seen, stretches;
        for (int64_t at = 0; at < samples; ++at) {
          const SampleOrder::Run run = order.find(epoch * samples + at, 1);
          EXPECT_EQ(run.epoch, static_cast<uint64_t>(epoch));
          seen.insert(run.sample);
          if (window == 0) continue;
          EXPECT_TRUE(epoch > 0 || run.sample / window == at / window);
          if (at % window == 0) stretches.clear();
          stretches.insert(run.sample / window);
          EXPECT_EQ(stretches.size(), 1u) << samples << " " << window << " " << epoch << " " << at;
        }
        EXPECT_EQ(seen.size(), static_cast<size_t>(samples));
        EXPECT_EQ(*seen.begin(), 0);
        EXPECT_EQ(*seen.rbegin(), samples - 1);
      }
    }
  }
}

TEST(SampleOrder, OfAStreamWithoutAnEndIsThatOfTheFirstEpoch) {
  const SampleOrder ends(256, true, 32, 9), goes_on(INT64_MAX, true, 32, 9);
  bool shuffled = false;
  for (int64_t at = 0; at < 256; ++at) {
    EXPECT_EQ(goes_on.find(at, 1).sample, ends.find(at, 1).sample);
    shuffled |= ends.find(at, 1).sample != at;
  }
  EXPECT_TRUE(shuffled);
  EXPECT_EQ(SampleOrder(INT64_MAX, true, 0, 9).find(77, 3).sample, 77);
}

class Shards : public ::testing::Test {
 protected:
  Shards() {
    // 9 ids: 2 windows of 4, whose labels need one more; 4 ids: none; 13: 3.
    folder_.write("a.bin", ids(100, 9));
    folder_.write("b.bin", ids(200, 4));
    folder_.write("c.bin", ids(300, 13));
  }
  TempFolder folder_;
};

TEST_F(Shards, AreReadOneAfterTheOther) {
  const auto index = index_folder(folder_.path());
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(index->shards[1], (Shard{"b.bin", 8, 4, sha256_hex(as_byte_span(ids(200, 4)))}));
  EXPECT_EQ(*parse_shard_index(shard_index_text(*index), "it"), *index);
  EXPECT_EQ(guess_data_kind(folder_.path()), DataKind::kTokens);
  const auto source = open(tokens(folder_.path()));
  ASSERT_NE(source, nullptr);
  EXPECT_EQ(source->samples_per_epoch(), 5);
  std::vector<int64_t> first, labels;
  for (int64_t k = 0; k < 5; ++k) {
    first.push_back(*first_id(*source, k));
    labels.push_back(*first_id(*source, k, 1));
  }
  EXPECT_THAT(first, ElementsAre(100, 104, 300, 304, 308));
  EXPECT_THAT(labels, ElementsAre(101, 105, 301, 305, 309));
  EXPECT_THAT(*source->locate(3), ElementsAre(HasSubstr("c.bin': sample 1, tokens 4 to 7")));
  EXPECT_THAT(source->told()[0], HasSubstr("26 tokens in 3 of them"));
  // A batch that reaches over several of them.
  const auto batch = open(tokens(folder_.path()), 5);
  std::vector<int64_t> all(20);
  ASSERT_TRUE(batch->fetch(0, 0, 5, 0, std::as_writable_bytes(std::span(all))).ok());
  EXPECT_EQ(all[4], 104);
  EXPECT_EQ(all[19], 311);
  EXPECT_THAT(message(source->check_steps(0, 6)), HasSubstr("holds 5"));
}

TEST_F(Shards, OfRecords) {
  const TempFolder archives;
  const std::string images = std::string(PARTITA_TEST_DATA) + "/images/";
  for (const char* name : {"ustar.tar", "pax.tar"}) std::filesystem::copy_file(images + name, archives / name);
  const auto index = index_folder(archives.path());
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(guess_data_kind(archives.path()), DataKind::kWebDataset);
  const std::vector<InputSpec> spec = {{"x", DType::kF32, {3, 8, 8}}, {"target", DType::kI64, {}}};
  const DataConfig config{.kind = DataKind::kWebDataset, .path = archives.path()};
  const auto source = DataSource::open(config, spec, 1);
  ASSERT_TRUE(source.ok()) << source.status();
  // pax comes first: names are sorted.
  for (const auto& [name, offset] : {std::pair{"pax.tar", int64_t{0}}, {"ustar.tar", index->shards[0].items}}) {
    const DataConfig alone{.kind = DataKind::kWebDataset, .path = images + name};
    const auto expected = DataSource::open(alone, spec, 1);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (int64_t k = 0; k < (*expected)->samples_per_epoch(); ++k) {
      std::vector<std::byte> want(3 * 8 * 8 * 4), have(want.size());
      ASSERT_TRUE((*expected)->fetch(k, 0, 1, 0, want).ok());
      ASSERT_TRUE((*source)->fetch(offset + k, 0, 1, 0, have).ok());
      EXPECT_EQ(want, have) << name << " " << k;
    }
  }
}

TEST_F(Shards, ThatGrowAreWaitedFor) {
  ASSERT_TRUE(index_folder(folder_.path(), {.dtype = DType::kU16, .complete = false}).ok());
  const auto source = open(tokens(folder_.path()));
  ASSERT_NE(source, nullptr);
  EXPECT_TRUE(source->check_steps(0, 1000).ok());
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    folder_.write("d.bin", ids(400, 5));
    EXPECT_TRUE(index_folder(folder_.path(), {.dtype = DType::kU16, .complete = false}).ok());
  });
  EXPECT_EQ(*first_id(*source, 5), 400);
  writer.join();
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    source->give_up();
  });
  EXPECT_TRUE(absl::IsCancelled(first_id(*source, 6).status()));
  stopper.join();
  // Another run, which finds the end, and samples where they were.
  const auto again = open(tokens(folder_.path()));
  EXPECT_EQ(*first_id(*again, 5), 400);
  ASSERT_TRUE(index_folder(folder_.path(), {.dtype = DType::kU16}).ok());
  EXPECT_THAT(message(first_id(*again, 6).status()), HasSubstr("complete with 6 samples"));
  EXPECT_EQ(open(tokens(folder_.path()))->samples_per_epoch(), 6);
}

TEST_F(Shards, ThatWereChangedAreRefused) {
  ASSERT_TRUE(index_folder(folder_.path(), {.dtype = DType::kU16, .complete = false}).ok());
  const auto source = open(tokens(folder_.path()));
  const std::string text = TempFolder::read(folder_ / "index.json");
  std::string other = text;
  other.replace(other.find("c.bin"), 5, "x.bin");
  folder_.write("index.json", other);
  EXPECT_THAT(message(first_id(*source, 5).status()), HasSubstr("has changed"));
  folder_.write("index.json", text);
  folder_.write("c.bin", ids(300, 12));
  EXPECT_THAT(message(index_folder(folder_.path()).status()), HasSubstr("has 24"));
  EXPECT_THAT(message(first_id(*open(tokens(folder_.path())), 3).status()), HasSubstr("26 bytes"));
  std::filesystem::remove(folder_ / "c.bin");
  EXPECT_THAT(message(index_folder(folder_.path()).status()), HasSubstr("is gone"));
}

TEST_F(Shards, WhoseIndexCannotBeMadeSayWhatToDo) {
  EXPECT_THAT(message(index_folder(folder_.path(), {}).status()), HasSubstr("--dtype uint16"));
  ASSERT_TRUE(index_folder(folder_.path()).ok());
  folder_.write("d.bin", ids(1, 9));
  EXPECT_THAT(message(index_folder(folder_.path()).status()), HasSubstr("calls it complete"));
  EXPECT_THAT(message(index_folder(folder_.path(), {.dtype = DType::kU16, .window = 7}).status()),
              HasSubstr("within 65536"));
  const TempFolder empty;
  EXPECT_THAT(message(index_folder(empty.path()).status()), HasSubstr("holds no .bin, .npy or .tar"));
  std::filesystem::copy_file(std::string(PARTITA_TEST_DATA) + "/images/ustar.tar", folder_ / "z.tar");
  std::filesystem::remove(folder_ / "index.json");
  EXPECT_THAT(message(index_folder(folder_.path()).status()), HasSubstr("of one kind"));
  DataConfig packed = tokens(folder_.path());
  std::filesystem::rename(folder_ / "z.tar", folder_ / "z.tar.gz");
  EXPECT_THAT(message(index_folder(folder_.path()).status()), HasSubstr("z.tar.gz' is compressed"));
  std::filesystem::remove(folder_ / "z.tar.gz");
  ASSERT_TRUE(index_folder(folder_.path()).ok());
  packed.documents = DocumentMode::kPack;
  EXPECT_THAT(message(DataSource::open(packed, inputs(), 1).status()), HasSubstr("expected join or separate"));
  for (const char* bad :
       {"", "[]", "{}", R"({"kind": "tokens", "dtype": "u16", "complete": true, "shards": [{"name": "../a.bin"}]})",
        R"({"kind": "tokens", "dtype": "u16", "complete": true, "shards": [{"name": "../a.bin", "bytes": 2, "items": 1,
            "sha256": "0000000000000000000000000000000000000000000000000000000000000000"}]})"}) {
    folder_.write("index.json", bad);
    EXPECT_TRUE(absl::IsDataLoss(DataSource::open(tokens(folder_.path()), inputs(), 1).status())) << bad;
  }
}

TEST_F(Shards, OfAnObjectStoreAreFetchedAndKept) {
  if (!std::filesystem::exists(python())) GTEST_SKIP() << "no server: tools/install_test_services was not run";
  const S3Server server(5);
  for (const auto& [name, value] : server.environment()) ::setenv(name.c_str(), value.c_str(), 1);
  const std::string place = "s3://bucket/tokens/";
  const auto store = open_object_store(place, server.environment(), nullptr);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto put = [&](const std::string& name, const std::string& bytes) {
    const absl::Status done = (*store)->put(name, std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(done.ok()) << done;
  };
  const TempFolder cache;
  DataConfig config = tokens(place);
  config.cache = {.folder = cache.path(), .bytes = 48};
  EXPECT_THAT(message(DataSource::open(config, inputs(), 1).status()), HasSubstr("partita data index s3://bucket"));
  put("a.bin", ids(100, 9));
  put("b/b.bin", ids(200, 13));
  put("c.bin", ids(300, 13));
  const auto index = update_shard_index(**store, {.dtype = DType::kU16});
  ASSERT_TRUE(index.ok()) << index.status();
  {
    const auto source = open(config);
    ASSERT_NE(source, nullptr);
    for (const auto& [step, expected] : {std::pair{0, 100}, {7, 308}, {2, 200}, {1, 104}})
      EXPECT_EQ(first_id(*source, step).value_or(-1), expected) << step;
  }
  // 18, 26 and 26 bytes, of which no more than 48 are kept.
  int64_t kept = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache.path())) {
    if (entry.path().extension() == ".bin") kept += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_LE(kept, 48);
  config.cache.bytes = 1000;
  EXPECT_EQ(first_id(*open(config), 7).value_or(-1), 308);
  put("c.bin", ids(301, 13));
  EXPECT_EQ(first_id(*open(config), 7).value_or(-1), 308);  // it has it
  const TempFolder fresh;
  config.cache.folder = fresh.path();
  const auto source = open(config);
  EXPECT_EQ(first_id(*source, 2).value_or(-1), 200);
  EXPECT_THAT(message(first_id(*source, 7).status()), HasSubstr("changed after it was listed"));
}

}  // namespace
}  // namespace partita::runtime
