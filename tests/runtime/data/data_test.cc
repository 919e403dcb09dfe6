#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include "base/box.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/data_source.h"
#include "runtime/data/prefetcher.h"
#include "runtime/files/npz.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <typename T>
std::string text_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
std::vector<T> iota(size_t n, T from = 0) {
  std::vector<T> out(n);
  std::iota(out.begin(), out.end(), from);
  return out;
}

template <typename T>
std::vector<T> fetch(const DataSource& source, int64_t step, int64_t first, int64_t count, int input) {
  const InputSpec& spec = source.inputs()[static_cast<size_t>(input)];
  std::vector<T> out(static_cast<size_t>((spec.batched ? count : 1) * sample_elements(spec)));
  const absl::Status status = source.fetch(step, first, count, input, std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

std::unique_ptr<DataSource> open(const DataConfig& config, std::vector<InputSpec> inputs, int64_t batch) {
  auto source = DataSource::open(config, std::move(inputs), batch);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? *std::move(source) : nullptr;
}

std::string open_error(const DataConfig& config, std::vector<InputSpec> inputs, int64_t batch = 2) {
  return std::string(DataSource::open(config, std::move(inputs), batch).status().message());
}

// x: [10, 3] f32 counting, y: [10] i64 = 100 + sample.
std::string counting_npz(const TempFolder& folder) {
  const std::vector<float> x = iota<float>(30);
  const std::vector<int64_t> y = iota<int64_t>(10, 100);
  EXPECT_TRUE(
      write_npz(folder / "d.npz", {{"x", DType::kF32, {10, 3}, bytes_of(x)}, {"y", DType::kI64, {10}, bytes_of(y)}})
          .ok());
  return folder / "d.npz";
}
const std::vector<InputSpec> kXY = {{"x", DType::kF32, {3}}, {"y", DType::kI64, {}}};

TEST(NpzData, ServesSamplesInOrderToAnySplit) {
  const TempFolder folder;
  const auto source = open({.path = counting_npz(folder)}, kXY, 4);
  EXPECT_EQ(source->samples_per_epoch(), 10);
  EXPECT_THAT(fetch<float>(*source, 1, 0, 4, 0), ElementsAreArray(iota<float>(12, 12)));
  EXPECT_THAT(fetch<float>(*source, 1, 2, 1, 0), ElementsAre(18, 19, 20));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 3, 1, 1), ElementsAre(103));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 4, 0, 1), ElementsAre());
  EXPECT_FALSE(source->fetch(0, 3, 2, 0, {}).ok());
  EXPECT_EQ(source->input_index("y"), 1);
  EXPECT_EQ(source->input_index("z"), -1);
}

TEST(NpzData, TooFewSamplesSaysTheNumbers) {
  const TempFolder folder;
  DataConfig config{.path = counting_npz(folder)};
  auto source = open(config, kXY, 4);
  EXPECT_TRUE(source->check_steps(0, 2).ok());
  const std::string message(source->check_steps(0, 3).message());
  EXPECT_THAT(message, HasSubstr("steps 0 to 2 of 4 samples each need 12 samples, but npz file"));
  EXPECT_THAT(message, HasSubstr("holds 10; run at most 2 steps"));
  std::vector<std::byte> out(12);
  EXPECT_FALSE(source->fetch(2, 0, 1, 0, out).ok());
  EXPECT_FALSE(source->check_steps(int64_t{1} << 62, 5).ok());
  config.epochs = 2;
  EXPECT_TRUE(open(config, kXY, 4)->check_steps(0, 5).ok());
  config.epochs = 0;
  source = open(config, kXY, 4);
  EXPECT_TRUE(source->check_steps(0, 1000).ok());
  EXPECT_THAT(fetch<int64_t>(*source, 2, 0, 4, 1), ElementsAre(108, 109, 100, 101));
}

TEST(NpzData, TailIsPadded) {
  const TempFolder folder;
  const auto source = open({.path = counting_npz(folder), .pad_tail = true, .padding = {{"y", -100}}}, kXY, 4);
  EXPECT_EQ(source->valid_samples(1), 4);
  EXPECT_EQ(source->valid_samples(2), 2);
  EXPECT_EQ(source->valid_samples(3), 0);
  EXPECT_THAT(fetch<int64_t>(*source, 2, 0, 4, 1), ElementsAre(108, 109, -100, -100));
  EXPECT_THAT(fetch<float>(*source, 2, 3, 1, 0), ElementsAre(0, 0, 0));
  EXPECT_FALSE(source->check_steps(0, 4).ok());
}

TEST(NpzData, ShuffledEpochsAreCompleteAndResumable) {
  const TempFolder folder;
  const DataConfig config{.path = counting_npz(folder), .shuffle = true, .seed = 3, .epochs = 3};
  const auto source = open(config, kXY, 5);
  std::vector<std::vector<int64_t>> epochs(3);
  for (int64_t step = 0; step < 6; ++step) {
    const std::vector<int64_t> batch = fetch<int64_t>(*source, step, 0, 5, 1);
    // Two ranks, other order, a fresh source: the same samples.
    const auto again = open(config, kXY, 5);
    std::vector<int64_t> parts = fetch<int64_t>(*again, step, 0, 2, 1), rest = fetch<int64_t>(*again, step, 2, 3, 1);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, batch);
    const std::vector<float> x = fetch<float>(*source, step, 0, 5, 0);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(x[3 * i], static_cast<float>(3 * (batch[i] - 100)));
    epochs[static_cast<size_t>(step / 2)].insert(epochs[static_cast<size_t>(step / 2)].end(), batch.begin(),
                                                 batch.end());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (std::vector<int64_t>& epoch : epochs) {
    EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end()));
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, iota<int64_t>(10, 100));
  }
  // Resumed after 15 samples with batches of 3: step 5 continues the same stream.
  const auto resumed = open(config, kXY, 3);
  EXPECT_EQ(fetch<int64_t>(*resumed, 5, 0, 3, 1), fetch<int64_t>(*source, 3, 0, 3, 1));
  DataConfig moved = config;
  moved.sample_offset = 15 - 7 * 3;
  EXPECT_EQ(fetch<int64_t>(*open(moved, kXY, 3), 7, 0, 3, 1), fetch<int64_t>(*source, 3, 0, 3, 1));
}

TEST(NpzData, SkipAndLimitSelectAPart) {
  const TempFolder folder;
  const auto source = open({.path = counting_npz(folder), .epochs = 0, .skip = 6, .limit = 3}, kXY, 4);
  EXPECT_EQ(source->samples_per_epoch(), 3);
  EXPECT_THAT(fetch<int64_t>(*source, 0, 0, 4, 1), ElementsAre(106, 107, 108, 106));
  EXPECT_THAT(open_error({.path = folder / "d.npz", .skip = 10}, kXY),
              HasSubstr("holds 10 samples, all of them skipped"));
}

TEST(NpzData, MistakesAreNamed) {
  const TempFolder folder;
  const DataConfig config{.path = counting_npz(folder)};
  EXPECT_THAT(open_error(config, {{"z", DType::kF32, {3}}}), HasSubstr("has no array 'z'"));
  EXPECT_THAT(
      open_error(config, {{"x", DType::kF32, {4}}}),
      HasSubstr("array 'x' of '" + config.path + "' has shape [10, 3], but graph input 'x' needs [samples, 4]"));
  EXPECT_THAT(open_error(config, {{"y", DType::kI64, {1}}}),
              HasSubstr("has shape [10], but graph input 'y' needs [samples, 1]"));
  EXPECT_THAT(open_error(config, {{"x", DType::kI32, {3}}}), HasSubstr("has dtype f32, expected i32"));
  EXPECT_THAT(open_error({.path = config.path, .columns = {{"X", "x"}}}, kXY),
              HasSubstr("no input 'X'; did you mean 'x'?"));
  EXPECT_THAT(open_error({.path = folder / "none.npz"}, kXY), HasSubstr("none.npz': No such file"));
  EXPECT_THAT(open_error(config, kXY, 0), HasSubstr("global batch 0"));
  EXPECT_THAT(open_error(config, {{"x", DType::kF32, {-1}}}), HasSubstr("cannot be fed"));
  const std::vector<int64_t> big = {1, 1000, 2};
  ASSERT_TRUE(write_npz(folder / "b.npz",
                        {{"a", DType::kI64, {3}, bytes_of(big)}, {"b", DType::kI64, {2}, bytes_of(big).first(16)}})
                  .ok());
  EXPECT_THAT(open_error({.path = folder / "b.npz"}, {{"a", DType::kI64, {}}, {"b", DType::kI64, {}}}),
              HasSubstr("has 2 samples, but array 'a'"));
  std::vector<std::byte> out(3);
  const auto source = open({.path = folder / "b.npz"}, {{"a", DType::kI8, {}}}, 3);
  EXPECT_THAT(std::string(source->fetch(0, 0, 3, 0, out).message()),
              HasSubstr("sample 1 holds 1000, which i8 cannot hold"));
}

TEST(NpzData, ColumnsRenameAndUnbatchedInputsAreWhole) {
  const TempFolder folder;
  const std::vector<float> table = {5, 6};
  const std::vector<double> x = iota<double>(4);
  ASSERT_TRUE(write_npz(folder / "a.npz",
                        {{"table", DType::kF32, {2}, bytes_of(table)}, {"data", DType::kF64, {4}, bytes_of(x)}})
                  .ok());
  const auto source = open({.path = folder / "a.npz", .columns = {{"x", "data"}}},
                           {{"x", DType::kF32, {}}, {"table", DType::kF32, {2}, false}}, 2);
  EXPECT_THAT(fetch<float>(*source, 1, 0, 2, 0), ElementsAre(2, 3));
  EXPECT_THAT(fetch<float>(*source, 1, 1, 1, 1), ElementsAre(5, 6));
}

TEST(NpyData, FolderOrSingleFile) {
  const TempFolder folder;
  const std::vector<float> x = iota<float>(6);
  const std::vector<int32_t> y = {7, 8, 9};
  ASSERT_TRUE(write_npy(folder / "x.npy", DType::kF32, std::vector<int64_t>{3, 2}, bytes_of(x)).ok());
  ASSERT_TRUE(write_npy(folder / "labels.npy", DType::kI32, std::vector<int64_t>{3}, bytes_of(y)).ok());
  const std::vector<InputSpec> inputs = {{"x", DType::kF32, {2}}, {"y", DType::kI64, {}}};
  const auto source =
      open({.kind = DataKind::kNpy, .path = folder.path(), .columns = {{"y", "labels.npy"}}}, inputs, 3);
  EXPECT_THAT(fetch<float>(*source, 0, 1, 2, 0), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 0, 3, 1), ElementsAre(7, 8, 9));
  EXPECT_THAT(fetch<float>(*open({.kind = DataKind::kNpy, .path = folder / "x.npy"}, {inputs[0]}, 1), 2, 0, 1, 0),
              ElementsAre(4, 5));
  EXPECT_THAT(open_error({.kind = DataKind::kNpy, .path = folder / "x.npy"}, inputs),
              HasSubstr("is one array, but the graph has 2 inputs"));
  EXPECT_THAT(open_error({.kind = DataKind::kNpy, .path = folder.path()}, inputs),
              HasSubstr("data for graph input 'y'"));
}

TEST(TokenData, WindowsAndShiftedLabels) {
  const TempFolder folder;
  const std::string path = folder.write("t.bin", text_of(iota<uint16_t>(13, 500)));
  const std::vector<InputSpec> inputs = {{"input_ids", DType::kI64, {4}},
                                         {"target", DType::kI64, {4}},
                                         {"labels", DType::kI32, {4}},
                                         {"position_ids", DType::kI64, {4}},
                                         {"attention_mask", DType::kF32, {1, 4}},
                                         {"token_type_ids", DType::kI64, {4}}};
  const auto source =
      open({.kind = DataKind::kTokens, .path = path, .shifted_inside = {"labels"}, .vocabulary = 513}, inputs, 3);
  EXPECT_EQ(source->samples_per_epoch(), 3);  // 13 tokens: 12 inputs and the last label
  EXPECT_THAT(fetch<int64_t>(*source, 0, 1, 2, 0), ElementsAreArray(iota<int64_t>(8, 504)));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 1, 2, 1), ElementsAreArray(iota<int64_t>(8, 505)));
  EXPECT_THAT(fetch<int32_t>(*source, 0, 0, 1, 2), ElementsAre(500, 501, 502, 503));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 0, 2, 3), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(fetch<float>(*source, 0, 0, 2, 4), Each(1.f));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 0, 2, 5), Each(0));
}

TEST(TokenData, ShiftDecidesHowManyWindowsFit) {
  const TempFolder folder;
  const std::string path = folder.write("t.bin", text_of(iota<uint16_t>(12)));
  const std::vector<InputSpec> inputs = {{"x", DType::kI64, {4}}, {"labels", DType::kI64, {4}}};
  DataConfig config{.kind = DataKind::kTokens, .path = path, .shifted_inside = {"labels"}};
  EXPECT_EQ(open(config, inputs, 1)->samples_per_epoch(), 3);
  config.shift = true;
  const auto source = open(config, inputs, 1);
  EXPECT_EQ(source->samples_per_epoch(), 2);
  EXPECT_THAT(fetch<int64_t>(*source, 1, 0, 1, 1), ElementsAre(5, 6, 7, 8));
}

TEST(TokenData, TextIsBytesAndNpyIsIds) {
  const TempFolder folder;
  const std::vector<InputSpec> inputs = {{"input_ids", DType::kI32, {2}}};
  EXPECT_THAT(fetch<int32_t>(*open({.kind = DataKind::kTokens, .path = folder.write("a.txt", "abcd\xff!")}, inputs, 3),
                             0, 0, 3, 0),
              ElementsAre('a', 'b', 'c', 'd', 255, '!'));
  const std::vector<int32_t> ids = {9, 8, 7, 6};
  ASSERT_TRUE(write_npy(folder / "a.npy", DType::kI32, std::vector<int64_t>{4}, bytes_of(ids)).ok());
  EXPECT_THAT(fetch<int32_t>(*open({.kind = DataKind::kTokens, .path = folder / "a.npy"}, inputs, 2), 0, 0, 2, 0),
              ElementsAre(9, 8, 7, 6));
  const std::string u32 = folder.write("b.bin", "head" + text_of(std::vector<uint32_t>{100000, 3}));
  EXPECT_THAT(fetch<int32_t>(
                  *open({.kind = DataKind::kTokens, .path = u32, .dtype = DType::kU32, .header_bytes = 4}, inputs, 1),
                  0, 0, 1, 0),
              ElementsAre(100000, 3));
}

// Without a word about its elements, a .bin of text is text, whatever ids the model knows.
TEST(TokenData, TextInABinIsBytes) {
  const TempFolder folder;
  std::vector<InputSpec> inputs = {{"input_ids", DType::kI32, {2}}};
  inputs[0].bounds = {0, 50257};
  auto first = [&](const std::string& path) {
    return fetch<int32_t>(*open({.kind = DataKind::kTokens, .path = path, .check_ids = false}, inputs, 1), 0, 0, 1, 0);
  };
  std::string text;
  for (int k = 0; k < 40; ++k) text += "To be, or ";
  EXPECT_THAT(first(folder.write("text.bin", text)), ElementsAre('T', 'o'));
  std::vector<uint16_t> ids;
  for (uint16_t k = 0; k < 200; ++k) ids.push_back(static_cast<uint16_t>(50256 - 37 * k));
  EXPECT_THAT(first(folder.write("ids.bin", text_of(ids))), ElementsAre(50256, 50219));
}

// A graph with a table of few rows tells that a .bin holds bytes, and that an id is too large.
TEST(TokenData, TheGraphsTableBoundsTheIds) {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", "abcdef");
  const DataConfig config{.kind = DataKind::kTokens, .path = path};
  EXPECT_THAT(fetch<int64_t>(*open(config, {{"input_ids", DType::kI64, {2}, true, {0, 128}}}, 3), 0, 0, 1, 0),
              ElementsAre('a', 'b'));
  EXPECT_THAT(fetch<int64_t>(*open(config, {{"input_ids", DType::kI64, {1}, true, {0, 40000}}}, 3), 0, 0, 1, 0),
              ElementsAre('a' + 256 * 'b'));
  EXPECT_THAT(fetch<int64_t>(*open(config, {{"input_ids", DType::kI64, {1}, true, {0, 601}}}, 3), 0, 0, 1, 0),
              ElementsAre('a'));
  const std::vector<InputSpec> inputs = {{"input_ids", DType::kI64, {2}, true, {0, 99}}};
  EXPECT_THAT(open_error(config, inputs, 1), HasSubstr("token 2 is 99; the vocabulary has 99 ids"));
  DataConfig later = config;  // unless it is left to the batch that has it
  later.check_ids = false;
  std::vector<int64_t> out(2);
  const absl::Status status = open(later, inputs, 1)->fetch(1, 0, 1, 0, std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 2 is 99; the vocabulary has 99 ids"));
}

TEST(ArrayData, IntegersOutsideTheirBoundsAreNamed) {
  const TempFolder folder;
  const std::vector<int64_t> ids = {0, 3, -1, 4};
  ASSERT_TRUE(write_npy(folder / "ids.npy", DType::kI64, std::vector<int64_t>{2, 2}, bytes_of(ids)).ok());
  const std::vector<InputSpec> inputs = {{"ids", DType::kI64, {2}, true, {-4, 4}}};
  const auto source = open({.kind = DataKind::kNpy, .path = folder.path()}, inputs, 1);
  EXPECT_THAT(fetch<int64_t>(*source, 0, 0, 1, 0), ElementsAre(0, 3));
  std::vector<int64_t> out(2);
  const absl::Status status = source->fetch(1, 0, 1, 0, std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("sample 1 for graph input 'ids' holds 4: expected numbers from -4 to 3, as many as"));

  const std::vector<InputSpec> marked = {{"ids", DType::kI64, {2}, true, {0, 5, -100}}};
  EXPECT_THAT(std::string(open({.kind = DataKind::kNpy, .path = folder.path()}, marked, 1)
                              ->fetch(1, 0, 1, 0, std::as_writable_bytes(std::span(out)))
                              .message()),
              HasSubstr("holds -1: expected numbers from 0 to 4 or -100, as many as"));
}

TEST(TokenData, MistakesAreNamed) {
  const TempFolder folder;
  const std::string path = folder.write("t.bin", text_of(std::vector<uint16_t>{1, 2, 3, 40000, 5, 6}));
  DataConfig config{.kind = DataKind::kTokens, .path = path, .check_ids = false, .vocabulary = 1000};
  std::vector<int64_t> out(6);
  const auto status =
      open(config, {{"input_ids", DType::kI64, {2}}}, 3)->fetch(0, 0, 3, 0, std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("token 3 is 40000; the vocabulary has 1000 ids. Is the dtype (u16) right?"));
  EXPECT_THAT(open_error(config, {{"input_ids", DType::kI64, {9}}}), HasSubstr("holds 0 samples"));
  EXPECT_THAT(open_error(config, {{"weird", DType::kI64, {2}}}), HasSubstr("graph input 'weird': what it takes"));
  EXPECT_THAT(open_error(config, {{"input_ids", DType::kI64, {2}}, {"labels", DType::kI64, {3}}}),
              HasSubstr("windows have 2 tokens"));
  config.columns = {{"weird", "wrong"}};
  EXPECT_THAT(open_error(config, {{"weird", DType::kI64, {2}}}), HasSubstr("is given 'wrong'; expected input_ids"));
  config.columns = {{"weird", "input_ids"}};
  EXPECT_EQ(open_error(config, {{"weird", DType::kI64, {2}}}), "");
  config.path = folder.write("odd.bin", "abc");
  config.vocabulary = 0;
  EXPECT_THAT(open_error(config, {{"weird", DType::kI64, {2}}}), HasSubstr("no whole number of u16 tokens"));
}

TEST(RawData, RecordsWithFields) {
  const TempFolder folder;
  // Records of a label byte and three pixels, after a header of two bytes.
  const std::string path = folder.write("r.bin", std::string("hh\x01\x0a\x0b\x0c\x02\x14\x15\x16", 10));
  const std::vector<InputSpec> inputs = {{"x", DType::kF32, {3}}, {"target", DType::kI64, {}}};
  DataConfig config{
      .kind = DataKind::kRaw, .path = path, .columns = {{"target", "u8@0"}, {"x", "u8@1"}}, .header_bytes = 2};
  const auto source = open(config, inputs, 2);
  EXPECT_EQ(source->samples_per_epoch(), 2);
  EXPECT_THAT(fetch<float>(*source, 0, 0, 2, 0), ElementsAre(10, 11, 12, 20, 21, 22));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 0, 2, 1), ElementsAre(1, 2));
  config.record_bytes = 3;
  EXPECT_THAT(open_error(config, inputs), HasSubstr("records of 3 bytes are too short for fields that end at byte 4"));
  config.record_bytes = 5;
  EXPECT_THAT(open_error(config, inputs), HasSubstr("no multiple of the record size 5 (3 bytes are left over)"));
  config.columns["x"] = "u9@1";
  EXPECT_THAT(open_error(config, inputs), HasSubstr("is given 'u9@1'; expected dtype@byte"));
}

TEST(SyntheticData, IsTheSameForEverySplit) {
  const std::vector<InputSpec> inputs = {{"x", DType::kF32, {50}},
                                         {"labels", DType::kI64, {}},
                                         {"attention_mask", DType::kI64, {4}},
                                         {"position_ids", DType::kI64, {3}},
                                         {"flag", DType::kBool, {}}};
  const DataConfig config{.kind = DataKind::kSynthetic, .seed = 9, .ranges = {{"labels", 10}}};
  const auto source = open(config, inputs, 100);
  EXPECT_EQ(source->samples_per_epoch(), kUnlimited);
  EXPECT_TRUE(source->check_steps(0, 1000000).ok());
  const std::vector<float> x = fetch<float>(*source, 3, 0, 100, 0);
  EXPECT_THAT(fetch<float>(*open(config, inputs, 50), 7, 1, 1, 0), ElementsAreArray(std::span(x).subspan(51 * 50, 50)));
  double sum = 0, squares = 0;
  for (float v : x) sum += v, squares += v * v;
  EXPECT_NEAR(sum / 5000, 0, 0.06);
  EXPECT_NEAR(squares / 5000, 1, 0.08);
  const std::vector<int64_t> labels = fetch<int64_t>(*source, 0, 0, 100, 1);
  EXPECT_EQ(std::set<int64_t>(labels.begin(), labels.end()), (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 0, 2, 2), Each(1));
  EXPECT_THAT(fetch<int64_t>(*source, 0, 0, 1, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(fetch<uint8_t>(*source, 0, 0, 100, 4), Each(::testing::Le(1)));
  DataConfig other = config;
  other.seed = 10;
  EXPECT_NE(fetch<float>(*open(other, inputs, 100), 3, 0, 100, 0), x);
  other.ranges = {{"labels", 300}};
  EXPECT_THAT(open_error(other, {{"labels", DType::kI8, {}}}),
              HasSubstr("range 300 of graph input 'labels' does not fit i8"));
}

// Of large batches several threads draw samples, in pieces.
TEST(SyntheticData, IsTheSameInLargeBatches) {
  const std::vector<InputSpec> inputs = {{"x", DType::kF32, {1300}}, {"ids", DType::kI64, {1300}}};
  const DataConfig config{.kind = DataKind::kSynthetic, .seed = 9, .vocabulary = 1000};
  constexpr int64_t kSamples = 1000;
  const auto large = open(config, inputs, kSamples), small = open(config, inputs, 1);
  const std::vector<float> x = fetch<float>(*large, 0, 0, kSamples, 0);
  const std::vector<int64_t> ids = fetch<int64_t>(*large, 0, 0, kSamples, 1);
  for (size_t k : {0, 1, 7, 511, 999}) {
    EXPECT_THAT(fetch<float>(*small, static_cast<int64_t>(k), 0, 1, 0),
                ElementsAreArray(std::span(x).subspan(k * 1300, 1300)));
    EXPECT_THAT(fetch<int64_t>(*small, static_cast<int64_t>(k), 0, 1, 1),
                ElementsAreArray(std::span(ids).subspan(k * 1300, 1300)));
  }
}

TEST(DataKind, NamesAndGuesses) {
  for (DataKind kind : {DataKind::kNpz, DataKind::kNpy, DataKind::kTokens, DataKind::kRaw, DataKind::kSynthetic})
    EXPECT_EQ(*parse_data_kind(enum_name(kind)), kind);
  EXPECT_FALSE(parse_data_kind("csv").ok());
  EXPECT_EQ(guess_data_kind("a/b.npz"), DataKind::kNpz);
  EXPECT_EQ(guess_data_kind("text.bin"), DataKind::kTokens);
  EXPECT_EQ(guess_data_kind(TempFolder().path()), DataKind::kNpy);
}

TEST(Prefetcher, GivesEveryStepInOrder) {
  const TempFolder folder;
  std::shared_ptr<const DataSource> source = open({.path = counting_npz(folder), .shuffle = true, .epochs = 0}, kXY, 4);
  for (int64_t depth : {1, 3, 16}) {
    Prefetcher prefetcher(source, {{1, 2, 2}, {0, 0, 1}}, 0, 50, depth);
    for (int64_t step = 0; step < 50; ++step) {
      absl::StatusOr<Batch> batch = prefetcher.take(step);
      ASSERT_TRUE(batch.ok()) << batch.status();
      EXPECT_EQ(batch->step, step);
      EXPECT_EQ(batch->valid_samples, 4);
      ASSERT_EQ(batch->data.size(), 2u);
      const std::vector<int64_t> y = fetch<int64_t>(*source, step, 2, 2, 1);
      EXPECT_EQ(std::memcmp(batch->data[0].data(), y.data(), 16), 0);
      EXPECT_EQ(batch->data[1].size(), 12u);
      prefetcher.give_back(*std::move(batch));
    }
    EXPECT_EQ(prefetcher.take(50).status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_GE(prefetcher.stall_seconds(), 0);
  }
}

TEST(Prefetcher, JumpsWhereAsked) {
  const TempFolder folder;
  std::shared_ptr<const DataSource> source = open({.path = counting_npz(folder), .epochs = 0}, kXY, 4);
  Prefetcher prefetcher(source, {{1, 0, 4}}, 0, 1000);
  for (int64_t step : {0, 1, 1, 7, 8, 9, 3, 12, 0}) {
    absl::StatusOr<Batch> batch = prefetcher.take(step);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(batch->step, step);
    EXPECT_EQ(std::memcmp(batch->data[0].data(), fetch<int64_t>(*source, step, 0, 4, 1).data(), 32), 0);
  }
}

TEST(Prefetcher, ErrorsArriveAtTheirStepAndDoNotHang) {
  const TempFolder folder;
  std::shared_ptr<const DataSource> source = open({.path = counting_npz(folder)}, kXY, 4);
  Prefetcher prefetcher(source, {{0, 0, 4}}, 0, 10);
  EXPECT_TRUE(prefetcher.take(0).ok());
  EXPECT_TRUE(prefetcher.take(1).ok());
  for (int again = 0; again < 3; ++again)
    EXPECT_EQ(prefetcher.take(2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(prefetcher.take(1).ok());
  EXPECT_FALSE(prefetcher.take(5).ok());
  EXPECT_TRUE(prefetcher.take(0).ok());
  EXPECT_FALSE(Prefetcher(source, {{7, 0, 4}}, 0, 10).take(0).ok());
}

TEST(Prefetcher, RanksShareOneSource) {
  const TempFolder folder;
  std::shared_ptr<const DataSource> source = open({.path = counting_npz(folder), .shuffle = true, .epochs = 0}, kXY, 4);
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      Prefetcher prefetcher(source, {{1, rank, 1}}, 0, 20);
      for (int64_t step = 0; step < 20; ++step) {
        absl::StatusOr<Batch> batch = prefetcher.take(step);
        EXPECT_TRUE(batch.ok() &&
                    std::memcmp(batch->data[0].data(), fetch<int64_t>(*source, step, rank, 1, 1).data(), 8) == 0);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(NpzData, RealDataServesEveryStep) {
  const std::string path = std::string(PARTITA_MODELS) + "/gpt2/data.npz";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no models at " << PARTITA_MODELS;
  const auto source = open({.path = path}, {{"input_ids", DType::kI64, {48}}, {"labels", DType::kI64, {48}}}, 8);
  EXPECT_TRUE(source->check_steps(0, 8).ok());
  EXPECT_FALSE(source->check_steps(0, 9).ok());
  for (int64_t step = 0; step < 8; ++step)
    EXPECT_EQ(fetch<int64_t>(*source, step, 0, 8, 0), fetch<int64_t>(*source, step, 0, 8, 1));
}

}  // namespace
}  // namespace partita::runtime
