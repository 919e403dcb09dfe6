#include "runtime/files/safetensors.h"

#include <cstring>
#include <numeric>
#include <thread>

#include "base/box.h"
#include "base/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::HasSubstr;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::vector<float> counting(size_t n, float from = 0) {
  std::vector<float> out(n);
  std::iota(out.begin(), out.end(), from);
  return out;
}

std::string with_header(std::string json, std::string_view data) {
  while (json.size() % 8 != 0) json += ' ';
  std::string out(8, '\0');
  const uint64_t length = json.size();
  std::memcpy(out.data(), &length, 8);
  return out + json + std::string(data);
}

std::string open_error(const TempFolder& folder, std::string_view content) {
  return std::string(SafetensorsFile::open(folder.write("bad", content)).status().message());
}

TEST(Box, RunsCoverTheBoxInOrder) {
  std::vector<int64_t> seen;
  auto run = [&](int64_t at, int64_t packed, int64_t count) {
    seen.insert(seen.end(), {at, packed, count});
    return absl::OkStatus();
  };
  ASSERT_TRUE(
      for_each_run(std::vector<int64_t>{4, 3, 8}, std::vector<int64_t>{1, 0, 0}, std::vector<int64_t>{2, 3, 8}, run)
          .ok());
  EXPECT_EQ(seen, (std::vector<int64_t>{24, 0, 48}));
  seen.clear();
  ASSERT_TRUE(
      for_each_run(std::vector<int64_t>{4, 3, 8}, std::vector<int64_t>{1, 1, 2}, std::vector<int64_t>{2, 2, 3}, run)
          .ok());
  EXPECT_EQ(seen, (std::vector<int64_t>{34, 0, 3, 42, 3, 3, 58, 6, 3, 66, 9, 3}));
  seen.clear();
  ASSERT_TRUE(for_each_run({}, {}, {}, run).ok());
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 0, 1}));
  EXPECT_FALSE(check_box(std::vector<int64_t>{4}, std::vector<int64_t>{3}, std::vector<int64_t>{2}).ok());
  EXPECT_FALSE(check_box(std::vector<int64_t>{4}, std::vector<int64_t>{1}, std::vector<int64_t>{INT64_MAX}).ok());
}

TEST(Safetensors, RoundTripOfAllDtypes) {
  const TempFolder folder;
  std::vector<TensorInfo> tensors;
  for (int t = 1; t <= static_cast<int>(DType::kF64); ++t)
    tensors.push_back({"t\"\n/ß" + std::to_string(t), static_cast<DType>(t), {2, 3}});
  tensors.push_back({"scalar", DType::kF32, {}});
  tensors.push_back({"empty", DType::kI64, {0, 5}});
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"k\"", "ü\n"}};
  auto writer = SafetensorsWriter::create(folder / "a", tensors, metadata);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const TensorInfo& t : tensors) {
    const std::string data(static_cast<size_t>(*element_count(t.shape) * dtype_size(t.dtype)),
                           static_cast<char>(t.dtype));
    ASSERT_TRUE((*writer)->write(t.name, as_byte_span(data)).ok());
  }
  ASSERT_TRUE((*writer)->finish().ok());

  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(folder / "a");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata(), metadata);
  EXPECT_EQ(file->entries().size(), tensors.size());
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(folder / "a")), (*writer)->file_bytes());
  for (const TensorInfo& t : tensors) {
    const SafetensorsEntry* entry = file->find(t.name);
    ASSERT_NE(entry, nullptr) << t.name;
    EXPECT_EQ(entry->dtype, t.dtype);
    EXPECT_EQ(entry->shape, t.shape);
    EXPECT_EQ(entry->begin % dtype_size(t.dtype), 0) << t.name;
    for (std::byte b : file->data(*entry)) EXPECT_EQ(static_cast<int>(b), static_cast<int>(t.dtype));
  }
}

TEST(Safetensors, BytesDoNotDependOnOrderOrOwners) {
  const TempFolder folder;
  const std::vector<float> w = counting(6 * 8), b = counting(8, 100);
  {
    auto writer = SafetensorsWriter::create(folder / "whole", {{"w", DType::kF32, {6, 8}}, {"b", DType::kF32, {8}}});
    ASSERT_TRUE((*writer)->write("w", bytes_of(w)).ok());
    ASSERT_TRUE((*writer)->write("b", bytes_of(b)).ok());
    ASSERT_TRUE((*writer)->finish().ok());
  }
  // Four owners hold the quarters of w, two of them a half of b.
  auto writer = SafetensorsWriter::create(folder / "boxes", {{"b", DType::kF32, {8}}, {"w", DType::kF32, {6, 8}}});
  std::vector<std::thread> owners;
  for (int64_t owner = 0; owner < 4; ++owner) {
    owners.emplace_back([&, owner] {
      const std::vector<int64_t> offset = {owner / 2 * 3, owner % 2 * 4}, extent = {3, 4};
      std::vector<float> box;
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t c = 0; c < 4; ++c) box.push_back(w[static_cast<size_t>((offset[0] + r) * 8 + offset[1] + c)]);
      }
      EXPECT_TRUE((*writer)->write("w", offset, extent, bytes_of(box)).ok());
      if (owner < 2) {
        EXPECT_TRUE((*writer)
                        ->write("b", std::vector<int64_t>{owner * 4}, std::vector<int64_t>{4},
                                bytes_of(b).subspan(static_cast<size_t>(owner) * 16, 16))
                        .ok());
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  ASSERT_TRUE((*writer)->finish().ok());
  EXPECT_EQ(TempFolder::read(folder / "boxes"), TempFolder::read(folder / "whole"));
  EXPECT_EQ(folder.files(), 2u);

  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(folder / "boxes");
  std::vector<float> box(4);
  ASSERT_TRUE(
      file->read("w", std::vector<int64_t>{2, 3}, std::vector<int64_t>{2, 2}, std::as_writable_bytes(std::span(box)))
          .ok());
  EXPECT_EQ(box, (std::vector<float>{19, 20, 27, 28}));
}

TEST(Safetensors, SeveralProcessesFillOneFile) {
  const TempFolder folder;
  const std::vector<TensorInfo> tensors = {{"w", DType::kF32, {4}}};
  auto first = SafetensorsWriter::create(folder / "a", tensors, {}, "step-3");
  auto second = SafetensorsWriter::join(folder / "a", tensors, {}, "step-3");
  ASSERT_TRUE(first.ok() && second.ok()) << second.status();
  ASSERT_TRUE((*first)->write("w", std::vector<int64_t>{0}, std::vector<int64_t>{2}, bytes_of(counting(2))).ok());
  ASSERT_TRUE((*second)->write("w", std::vector<int64_t>{2}, std::vector<int64_t>{2}, bytes_of(counting(2, 2))).ok());
  ASSERT_TRUE((*second)->finish().ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  ASSERT_TRUE((*first)->finish().ok());
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(folder / "a");
  std::vector<float> w(4);
  ASSERT_TRUE(
      file->read("w", std::vector<int64_t>{0}, std::vector<int64_t>{4}, std::as_writable_bytes(std::span(w))).ok());
  EXPECT_EQ(w, counting(4));
}

TEST(Safetensors, WriterRefusesMistakes) {
  const TempFolder folder;
  const auto error = [&](std::vector<TensorInfo> tensors) {
    return std::string(SafetensorsWriter::create(folder / "a", std::move(tensors)).status().message());
  };
  EXPECT_THAT(error({{"a", DType::kF32, {1}}, {"a", DType::kI32, {1}}}), HasSubstr("listed twice"));
  EXPECT_THAT(error({{"__metadata__", DType::kF32, {1}}}), HasSubstr("cannot hold a tensor of the name"));
  EXPECT_THAT(error({{"\xff", DType::kF32, {1}}}), HasSubstr("'\\xff'"));
  EXPECT_THAT(error({{"a", DType::kF32, {-1}}}), HasSubstr("impossible shape [-1]"));
  EXPECT_THAT(error({{"a", DType::kF32, {INT64_MAX, 2}}}), HasSubstr("impossible shape"));
  EXPECT_THAT(error({{"a", DType::kInvalid, {1}}}), HasSubstr("has no dtype"));
  auto writer = SafetensorsWriter::create(folder / "a", {{"a", DType::kF32, {2}}});
  EXPECT_EQ((*writer)->write("b", bytes_of(counting(2))).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE((*writer)->write("a", bytes_of(counting(3))).ok());
  EXPECT_FALSE((*writer)->write("a", std::vector<int64_t>{1}, std::vector<int64_t>{2}, bytes_of(counting(2))).ok());
  EXPECT_THAT(std::string((*writer)->finish().message()), HasSubstr("got 0 of its 8 bytes"));
  writer->reset();
  EXPECT_EQ(folder.files(), 0u);
}

TEST(Safetensors, MissingTensorNamesTheNearest) {
  const TempFolder folder;
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(
      folder.write("a", with_header(R"({"wte.weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x")));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string(file->get("wte.wieght").status().message()), HasSubstr("nearest name is 'wte.weight'"));
}

TEST(Safetensors, KnowsDtypesThatItCannotRead) {
  const TempFolder folder;
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(
      folder.write("a", with_header(R"({"x":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", "x")));
  ASSERT_TRUE(file.ok()) << file.status();
  std::byte out;
  EXPECT_EQ(file->read("x", std::vector<int64_t>{0}, std::vector<int64_t>{1}, {&out, 1}).code(),
            absl::StatusCode::kUnimplemented);
}

TEST(Safetensors, RefusesBadHeaders) {
  const TempFolder folder;
  struct Case {
    const char* json;
    const char* error;
  };
  const Case cases[] = {
      {R"([])", "does not start with '{'"},
      {R"({"a")", "is not JSON"},
      {R"({"a":1})", "number 1 where it does not belong"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}} x)", "is not JSON"},
      {R"({"a":{"dtype":"U8","shape":[4]}})", "lacks dtype, shape or two data_offsets"},
      {R"({"a":{"dtype":"X9","shape":[4],"data_offsets":[0,4]}})", "unknown dtype 'X9'"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", "negative number -4"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", "expected a whole one"},
      {R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})", "needs 5 bytes, but data_offsets are [0, 4]"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", "needs 4 bytes, but data_offsets are [4, 0]"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}})", "number 8 where it does not belong"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615]}})", "does not belong"},
      {R"({"a":{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", "impossible shape"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "ends at data byte 8, but only 4 bytes"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "end at data byte 2, but the file holds 4"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", "a hole before it"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "overlaps"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
       "names 'a' twice"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "field dtype twice"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":0}})", "unknown field 'x'"},
      {R"({"__metadata__":{"x":1}})", "does not belong"},
      {R"({"__metadata__":{"x":{}}})", "an object where none belongs"},
      {R"({"__metadata__":[]})", "an array where none belongs"},
      {R"({"a":null})", "null"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(open_error(folder, with_header(c.json, "data")), HasSubstr(c.error)) << c.json;
  EXPECT_THAT(open_error(folder, with_header(std::string(200000, '['), "")), HasSubstr("does not start"));
  EXPECT_THAT(open_error(folder, with_header("{\"a\":" + std::string(200000, '['), "")),
              HasSubstr("an array where none belongs"));
}

TEST(Safetensors, RefusesLyingLengthsAndEveryTruncation) {
  const TempFolder folder;
  const std::string good = with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "data");
  ASSERT_TRUE(SafetensorsFile::open(folder.write("good", good)).ok());
  for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(open_error(folder, good.substr(0, size)), "") << size;
  EXPECT_NE(open_error(folder, good + "x"), "");
  for (uint64_t lie : {uint64_t{0}, uint64_t{7}, uint64_t{1000}, uint64_t{99'999'999}, uint64_t{1} << 40, UINT64_MAX,
                       UINT64_MAX - 7}) {
    std::string bad = good;
    std::memcpy(bad.data(), &lie, 8);
    EXPECT_NE(open_error(folder, bad), "") << lie;
  }
  // Any damaged header byte gives an error or a file that still holds together; nothing faults.
  for (size_t i = 0; i < good.size() - 4; ++i) {
    for (int flip : {0x01, 0x20, 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(folder.write("bad", bad));
      if (!file.ok()) continue;
      for (const SafetensorsEntry& entry : file->entries()) EXPECT_EQ(file->data(entry).size(), 4u);
    }
  }
}

}  // namespace
}  // namespace partita::runtime
