// Samples of several lengths: whose turn it is, and which samples are of each.
#include "runtime/data/order/length_schedule.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/data_source.h"
#include "runtime/files/npz.h"
#include "runtime/train/step_programs.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every batch of some epochs, by the rational times at which they are due.
std::vector<LengthSchedule::Turn> sorted_turns(const std::vector<LengthSchedule::Share>& shares, int64_t epochs) {
  std::vector<LengthSchedule::Turn> all;
  for (size_t k = 0; k < shares.size(); ++k) {
    for (int64_t b = 0; (b + 1) * shares[k].batch <= shares[k].samples * epochs; ++b) all.push_back({k, b});
  }
  const auto due = [&](const LengthSchedule::Turn& t, int64_t other) {  // times the product of both numbers of samples
    return (t.batch + 1) * shares[t.length].batch * other;
  };
  std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    const int64_t left = due(a, shares[b.length].samples), right = due(b, shares[a.length].samples);
    return left != right ? left < right : a.length < b.length;
  });
  return all;
}

TEST(LengthSchedule, SpreadsTheBatchesOfEachLengthEvenly) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<LengthSchedule::Share> shares(1 + random() % 4);
    for (auto& s : shares) s = {static_cast<int64_t>(random() % 40), static_cast<int64_t>(1 + random() % 9)};
    shares[random() % shares.size()].samples += 9;
    const LengthSchedule schedule(shares);
    const int64_t epochs = 1 + static_cast<int64_t>(random() % 3);
    const auto expected = sorted_turns(shares, epochs);
    ASSERT_EQ(schedule.batches(epochs), static_cast<int64_t>(expected.size()));
    std::vector<int64_t> before(shares.size(), 0);
    for (size_t b = 0; b < expected.size(); ++b) {
      for (size_t k = 0; k < shares.size(); ++k) ASSERT_EQ(schedule.before(k, static_cast<int64_t>(b)), before[k]);
      const LengthSchedule::Turn turn = schedule.at(static_cast<int64_t>(b));
      ASSERT_EQ(turn.length, expected[b].length);
      ASSERT_EQ(turn.batch, before[turn.length]++);
    }
  }
}

TEST(LengthSchedule, IsExact_FarFromTheStart) {
  const LengthSchedule schedule({{int64_t{1} << 40, 512}, {(int64_t{1} << 39) + 1, 256}});
  const int64_t far = int64_t{1} << 42;
  int64_t own[2] = {schedule.before(0, far), schedule.before(1, far)};
  EXPECT_EQ(own[0] + own[1], far);
  for (int64_t b = far; b < far + 20; ++b) {
    const LengthSchedule::Turn turn = schedule.at(b);
    EXPECT_EQ(turn.batch, own[turn.length]++);
  }
}

class LengthData : public ::testing::Test {
 protected:
  const std::vector<LengthPart> parts_ = {{2, 4, 0, {}}, {4, 2, 0, {}}, {8, 1, 0, {}}};

  std::vector<std::unique_ptr<DataSource>> open(const DataConfig& config) {
    std::vector<std::unique_ptr<DataSource>> all;
    for (size_t k = 0; k < parts_.size(); ++k) {
      auto source = DataSource::open(
          data_of_length(config, parts_, k),
          {{"input_ids", DType::kI64, {parts_[k].length}}, {"target", DType::kI64, {parts_[k].length}}},
          parts_[k].samples);
      EXPECT_TRUE(source.ok()) << source.status();
      if (source.ok()) all.push_back(*std::move(source));
    }
    return all;
  }
  static std::vector<int64_t> batch(const DataSource& source, int64_t step, int input) {
    std::vector<int64_t> out(
        static_cast<size_t>(source.global_batch() * source.inputs()[static_cast<size_t>(input)].sample_shape[0]));
    const absl::Status status =
        source.fetch(step, 0, source.global_batch(), input, std::as_writable_bytes(std::span(out)));
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  DataConfig tokens(const std::string& bytes) {
    return {.kind = DataKind::kTokens, .path = folder_.write("a.u8", bytes), .epochs = 0, .dtype = DType::kU8};
  }
  TempFolder folder_;
};

// Documents 1 2 0 | 3 0 | 1 2 3 4 5 6 7 8 9 0 | 0 | 4 5 6 0: the third is cut at 8.
TEST_F(LengthData, DocumentsGoWhereTheyFit_ThoseLongerThanAllAreCut) {
  DataConfig config = tokens({1, 2, 0, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 4, 5, 6, 0});
  config.documents = DocumentMode::kPad;
  config.end_of_document = 0;
  config.pad_token = 9;
  const auto sources = open(config);
  ASSERT_EQ(sources.size(), 3U);
  EXPECT_EQ(sources[0]->samples_per_epoch(), 3);  // 3 0, 9 0, 0
  EXPECT_EQ(sources[1]->samples_per_epoch(), 2);
  EXPECT_EQ(sources[2]->samples_per_epoch(), 1);
  EXPECT_THAT(batch(*sources[0], 0, 0), ElementsAre(3, 0, 9, 0, 0, 9, 3, 0));
  EXPECT_THAT(batch(*sources[0], 0, 1), ElementsAre(0, -100, 0, -100, -100, -100, 0, -100));
  EXPECT_THAT(batch(*sources[1], 0, 0), ElementsAre(1, 2, 0, 9, 4, 5, 6, 0));
  EXPECT_THAT(batch(*sources[2], 0, 0), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(batch(*sources[2], 0, 1), ElementsAre(2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(sources[0]->padding(0), 1.0 / 8);
  EXPECT_EQ(sources[1]->padding(0), 1.0 / 8);
  EXPECT_EQ(sources[2]->padding(0), 0);
}

// Samples 0 to 4 of lengths 3, 1, 8, 2, 4.
TEST_F(LengthData, ArraysSayHowMuchOfASampleIsItsOwn) {
  std::vector<int32_t> ids;
  for (int32_t k = 0; k < 5 * 8; ++k) ids.push_back(k);
  const std::vector<int64_t> lengths = {3, 1, 8, 2, 4};
  const auto bytes = [](const auto& v) { return std::as_bytes(std::span(v)); };
  const std::string path = folder_ / "a.npz";
  const auto write = [&](const std::vector<int64_t>& own) {
    const absl::Status written = write_npz(path, {{"input_ids", DType::kI32, {5, 8}, bytes(ids)},
                                                  {"target", DType::kI32, {5, 8}, bytes(ids)},
                                                  {"n", DType::kI64, {5}, bytes(own)}});
    ASSERT_TRUE(written.ok()) << written;
  };
  write(lengths);
  const DataConfig config{.kind = DataKind::kNpz, .path = path, .epochs = 0, .lengths = "n"};
  const auto sources = open(config);
  ASSERT_EQ(sources.size(), 3U);
  EXPECT_THAT(batch(*sources[0], 0, 0), ElementsAre(8, 9, 24, 25, 8, 9, 24, 25));
  EXPECT_THAT(batch(*sources[1], 0, 1), ElementsAre(0, 1, 2, 3, 32, 33, 34, 35));
  EXPECT_THAT(batch(*sources[2], 0, 0), ElementsAre(16, 17, 18, 19, 20, 21, 22, 23));
  EXPECT_EQ(sources[1]->padding(0), 1.0 / 8);
  write({3, 1, 9, 2, 4});
  const auto source = DataSource::open(data_of_length(config, parts_, 0), {{"input_ids", DType::kI64, {2}}}, 4);
  EXPECT_THAT(std::string(source.status().message()), HasSubstr("sample 2 has length 9, expected 1 to the largest"));
}

// A stream is cut into windows of each length in turn: an epoch has every token once, shuffled or not.
TEST_F(LengthData, StreamsHaveEveryTokenOnceAnEpoch) {
  std::string stream;
  for (int k = 0; k <= 6 * 8; ++k) stream += static_cast<char>(k + 1);
  for (const bool shuffle : {false, true}) {
    DataConfig config = tokens(stream);
    config.shuffle = shuffle;
    const auto sources = open(config);
    const LengthSchedule schedule = length_schedule({sources[0].get(), sources[1].get(), sources[2].get()});
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      std::multiset<int64_t> seen;
      for (int64_t b = 6 * epoch; b < 6 * (epoch + 1); ++b) {
        const LengthSchedule::Turn turn = schedule.at(b);
        EXPECT_EQ(turn.length, static_cast<size_t>(b % 3));
        const DataSource& source = *sources[turn.length];
        const auto ids = batch(source, turn.batch, 0), labels = batch(source, turn.batch, 1);
        ASSERT_EQ(ids.size(), 8U);
        for (size_t k = 0; k < 8; ++k) EXPECT_EQ(labels[k], ids[k] + 1);
        EXPECT_FALSE(source.padding(turn.batch).has_value());
        seen.insert(ids.begin(), ids.end());
      }
      EXPECT_EQ(seen.size(), 48U);
      EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 48U) << "epoch " << epoch;
    }
  }
}

TEST_F(LengthData, IsRefused_WhereSamplesCannotHaveThem) {
  const auto refused = [&](DataConfig config, const std::vector<LengthPart>& parts) {
    const auto source = DataSource::open(data_of_length(std::move(config), parts, 0),
                                         {{"input_ids", DType::kI64, {parts[0].length}}}, parts[0].samples);
    return std::string(source.status().message());
  };
  DataConfig config = tokens(std::string(100, 1));
  EXPECT_THAT(refused(config, {{6, 4, 0, {}}, {8, 3, 0, {}}}),
              HasSubstr("are cut from windows of 8, the largest length; expected a length that divides 8, or "
                        "documents: pad under data"));
  config.kind = DataKind::kNpz;
  EXPECT_THAT(refused(config, parts_), HasSubstr("data: kind: npz has samples of one length"));
}

}  // namespace
}  // namespace partita::runtime
