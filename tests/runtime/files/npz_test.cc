#include "runtime/files/npz.h"

#include <zlib.h>

#include <cstring>
#include <numeric>

#include "base/box.h"
#include "base/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
std::vector<T> values(const NpyArray& array) {
  std::vector<T> out(array.bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), array.bytes.data(), array.bytes.size());
  return out;
}

std::string npy(const std::string& descr, const std::string& shape, std::string_view data, bool fortran = false) {
  std::string text =
      "{'descr': " + descr + ", 'fortran_order': " + (fortran ? "True" : "False") + ", 'shape': " + shape + ", }";
  while ((10 + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + raw<uint16_t>(static_cast<uint16_t>(text.size())) + text +
         std::string(data);
}

std::string deflated(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

struct Member {
  std::string name, content;
  bool compress = true;
  int64_t claimed = -1;  // a lie about the unpacked size
  bool zip64 = false;
};

std::string zip(const std::vector<Member>& members) {
  std::string out, directory;
  for (const Member& m : members) {
    const std::string packed = m.compress ? deflated(m.content) : m.content;
    const uint32_t crc = static_cast<uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(m.content.data()), static_cast<uInt>(m.content.size())));
    const uint64_t size = m.claimed >= 0 ? static_cast<uint64_t>(m.claimed) : m.content.size(), offset = out.size();
    const uint32_t size32 = m.zip64 ? 0xFFFFFFFF : static_cast<uint32_t>(size),
                   packed32 = m.zip64 ? 0xFFFFFFFF : static_cast<uint32_t>(packed.size());
    const std::string extra =
        m.zip64 ? raw<uint16_t>(1) + raw<uint16_t>(24) + raw(size) + raw<uint64_t>(packed.size()) + raw(offset) : "";
    const std::string common = raw<uint16_t>(20) + raw<uint16_t>(0) + raw<uint16_t>(m.compress ? 8 : 0) +
                               raw<uint32_t>(0) + raw(crc) + raw(packed32) + raw(size32) +
                               raw<uint16_t>(static_cast<uint16_t>(m.name.size())) +
                               raw<uint16_t>(static_cast<uint16_t>(extra.size()));
    out += raw<uint32_t>(0x04034b50) + common + m.name + extra + packed;
    directory += raw<uint32_t>(0x02014b50) + raw<uint16_t>(20) + common + raw<uint16_t>(0) + raw<uint16_t>(0) +
                 raw<uint16_t>(0) + raw<uint32_t>(0) +
                 raw<uint32_t>(m.zip64 ? 0xFFFFFFFF : static_cast<uint32_t>(offset)) + m.name + extra;
  }
  const uint16_t count = static_cast<uint16_t>(members.size());
  return out + directory + raw<uint32_t>(0x06054b50) + raw<uint32_t>(0) + raw(count) + raw(count) +
         raw<uint32_t>(static_cast<uint32_t>(directory.size())) + raw<uint32_t>(static_cast<uint32_t>(out.size())) +
         raw<uint16_t>(0);
}

std::string read_error(const TempFolder& folder, const std::string& content, std::string_view name = "a") {
  absl::StatusOr<NpzFile> file = NpzFile::open(folder.write("bad.npz", content));
  return std::string(file.ok() ? file->read(name).status().message() : file.status().message());
}

const std::string kTwoByTwo = npy("'<i4'", "(2, 2)", raw(1) + raw(2) + raw(3) + raw(4));

TEST(Npz, ReadsStoredDeflatedAndZip64) {
  const TempFolder folder;
  for (const bool compress : {false, true}) {
    for (const bool zip64 : {false, true}) {
      absl::StatusOr<NpzFile> file = NpzFile::open(folder.write(
          "a.npz",
          zip({{"a.npy", kTwoByTwo, compress, -1, zip64}, {"readme.txt", "x"}, {"dir/b.npy", kTwoByTwo, compress}})));
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_THAT(file->names(), ElementsAre("a", "dir/b"));
      absl::StatusOr<NpyArray> a = file->read("a");
      ASSERT_TRUE(a.ok()) << a.status();
      EXPECT_EQ(a->dtype, DType::kI32);
      EXPECT_THAT(a->shape, ElementsAre(2, 2));
      EXPECT_THAT(values<int32_t>(*a), ElementsAre(1, 2, 3, 4));
    }
  }
}

TEST(Npz, ArrayOutlivesTheFile) {
  const TempFolder folder;
  NpyArray array;
  {
    absl::StatusOr<NpzFile> file = NpzFile::open(folder.write("a.npz", zip({{"a.npy", kTwoByTwo, false}})));
    array = *file->read("a");
  }
  EXPECT_THAT(values<int32_t>(array), ElementsAre(1, 2, 3, 4));
}

TEST(Npz, RoundTripIsDeterministic) {
  const TempFolder folder;
  const std::vector<double> d = {1, 2, 3, 4, 5, 6};
  const std::vector<uint8_t> u = {7, 8};
  const auto bytes = [](const auto& v) { return std::as_bytes(std::span(v)); };
  const std::vector<NamedArray> arrays = {{"d", DType::kF64, {2, 3}, bytes(d)},
                                          {"ü/u", DType::kU8, {2}, bytes(u)},
                                          {"s", DType::kF64, {}, bytes(d).first(8)},
                                          {"none", DType::kI64, {0, 4}, {}}};
  ASSERT_TRUE(write_npz(folder / "a.npz", arrays).ok());
  ASSERT_TRUE(write_npz(folder / "b.npz", arrays).ok());
  EXPECT_EQ(TempFolder::read(folder / "a.npz"), TempFolder::read(folder / "b.npz"));
  absl::StatusOr<NpzFile> file = NpzFile::open(folder / "a.npz");
  ASSERT_TRUE(file.ok()) << file.status();
  for (const NamedArray& array : arrays) {
    absl::StatusOr<NpyArray> back = file->read(array.name);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->dtype, array.dtype);
    EXPECT_EQ(back->shape, array.shape);
    EXPECT_TRUE(std::ranges::equal(back->bytes, array.bytes));
  }
  EXPECT_FALSE(write_npz(folder / "c.npz", {{"x", DType::kBF16, {1}, bytes(u)}}).ok());
  EXPECT_FALSE(write_npz(folder / "c.npz", {{"x", DType::kU8, {3}, bytes(u)}}).ok());
  EXPECT_EQ(folder.files(), 2u);
}

TEST(Npz, MissingArrayNamesWhatIsThere) {
  const TempFolder folder;
  absl::StatusOr<NpzFile> file =
      NpzFile::open(folder.write("a.npz", zip({{"input_ids.npy", kTwoByTwo}, {"target.npy", kTwoByTwo}})));
  EXPECT_THAT(std::string(file->read("input_id").status().message()),
              HasSubstr("nearest name is 'input_ids'; it holds 'input_ids', 'target'"));
}

TEST(Npz, RefusesLies) {
  const TempFolder folder;
  EXPECT_THAT(read_error(folder, "no zip"), HasSubstr("too short"));
  EXPECT_THAT(read_error(folder, std::string(100, 'x')), HasSubstr("is not a zip archive"));
  EXPECT_THAT(read_error(folder, zip({{"a.npy", kTwoByTwo}, {"a.npy", kTwoByTwo}})), HasSubstr("twice"));
  EXPECT_THAT(read_error(folder, zip({{"a.npy", kTwoByTwo, true, 1'000'000'000}})),
              HasSubstr("claims 1000000000 bytes from"));
  EXPECT_THAT(read_error(folder, zip({{"a.npy", kTwoByTwo, true, 1 << 16}})),
              HasSubstr("needs 16 bytes of data, but the archive has 65408"));
  EXPECT_THAT(read_error(folder, zip({{"a.npy", kTwoByTwo, false, 1 << 20}})),
              HasSubstr("claims 1048576 bytes from 144 packed"));
  EXPECT_THAT(read_error(folder, zip({{"a.npy", npy("'<f4'", "(4000000000, 4000000000, 4)", ""), true}})),
              HasSubstr("impossible shape"));
  EXPECT_THAT(read_error(folder, zip({{"a.npy", npy("'<f4'", "(1000000,)", "abcd"), true}})),
              HasSubstr("needs 4000000 bytes"));
  // A bomb: the archive's claim agrees with the header, the stream holds less.
  EXPECT_THAT(read_error(folder, zip({{"a.npy", npy("'|u1'", "(9872,)", std::string(872, 'x')), true, 10000}})),
              HasSubstr("unpacks to 1000 bytes instead of 10000"));
  std::string damaged = zip({{"a.npy", kTwoByTwo, false}});
  damaged[30 + 5 + 140] ^= 1;
  EXPECT_THAT(read_error(folder, damaged), HasSubstr("CRC-32"));
}

TEST(Npz, EveryTruncationAndFlipIsSafe) {
  const TempFolder folder;
  for (const bool compress : {false, true}) {
    const std::string good = zip({{"a.npy", kTwoByTwo, compress, -1, compress}});
    for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(read_error(folder, good.substr(0, size)), "") << size;
    for (size_t i = 0; i < good.size(); ++i) {
      for (int flip : {0x01, 0xff}) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ flip);
        absl::StatusOr<NpzFile> file = NpzFile::open(folder.write("bad.npz", bad));
        if (!file.ok()) continue;
        for (const std::string& name : file->names()) {
          absl::StatusOr<NpyArray> array = file->read(name);
          if (array.ok()) {
            EXPECT_EQ(values<int32_t>(*array), (std::vector<int32_t>{1, 2, 3, 4})) << "byte " << i;
          }
        }
      }
    }
  }
}

TEST(Npy, DtypesAndVersions) {
  const TempFolder folder;
  const std::pair<const char*, DType> good[] = {
      {"'<f2'", DType::kF16}, {"'<f4'", DType::kF32}, {"'<f8'", DType::kF64},   {"'|i1'", DType::kI8},
      {"'<i2'", DType::kI16}, {"'<i4'", DType::kI32}, {"'<i8'", DType::kI64},   {"'|u1'", DType::kU8},
      {"'<u2'", DType::kU16}, {"'<u4'", DType::kU32}, {"\"<u8\"", DType::kU64}, {"'|b1'", DType::kBool}};
  for (const auto& [descr, dtype] : good) {
    absl::StatusOr<NpyArray> array =
        open_npy(folder.write("a.npy", npy(descr, "(1,)", std::string(static_cast<size_t>(dtype_size(dtype)), '\1'))));
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->dtype, dtype) << descr;
  }
  for (const char* descr : {"'>f4'", "'<U7'", "'|O'", "'<c8'", "[('x', '<f4'), ('y', '<i8', (2,))]", "'|V2'"}) {
    EXPECT_EQ(open_npy(folder.write("a.npy", npy(descr, "(1,)", std::string(64, 'x')))).status().code(),
              absl::StatusCode::kInvalidArgument)
        << descr;
  }
  EXPECT_THAT(std::string(open_npy(folder / "a.npy").status().message()), HasSubstr("has dtype '|V2'"));
  std::string second = npy("'|u1'", "()", "x");
  second[6] = 2;
  second.insert(10, 2, '\0');
  absl::StatusOr<NpyArray> array = open_npy(folder.write("a.npy", second));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_TRUE(array->shape.empty());
}

TEST(Npy, BigEndianSaysHowToConvert) {
  const TempFolder folder;
  EXPECT_THAT(std::string(open_npy(folder.write("a.npy", npy("'>i8'", "(1,)", "12345678"))).status().message()),
              HasSubstr("is big-endian"));
}

TEST(Npy, FortranOrderIsConverted) {
  const TempFolder folder;
  // Columns of [[0 1 2], [3 4 5]] one after another.
  std::string data;
  for (int v : {0, 3, 1, 4, 2, 5}) data += raw(v);
  absl::StatusOr<NpyArray> array = open_npy(folder.write("a.npy", npy("'<i4'", "(2, 3)", data, true)));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_THAT(values<int32_t>(*array), ElementsAre(0, 1, 2, 3, 4, 5));
  absl::StatusOr<NpyArray> empty = open_npy(folder.write("a.npy", npy("'<i4'", "(0, 3)", "", true)));
  EXPECT_TRUE(empty.ok() && empty->bytes.empty());
}

TEST(Npy, EveryTruncationAndFlipIsSafe) {
  const TempFolder folder;
  for (size_t size = 0; size < kTwoByTwo.size(); ++size)
    EXPECT_FALSE(open_npy(folder.write("a.npy", kTwoByTwo.substr(0, size))).ok()) << size;
  for (size_t i = 0; i < kTwoByTwo.size(); ++i) {
    for (int flip : {0x01, 0x07, 0x80}) {
      std::string bad = kTwoByTwo;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      absl::StatusOr<NpyArray> array = open_npy(folder.write("a.npy", bad));
      if (array.ok()) {
        EXPECT_EQ(static_cast<int64_t>(array->bytes.size()), *element_count(array->shape) * dtype_size(array->dtype));
      }
    }
  }
  for (const char* shape : {"(-1,)", "(99999999999999999999,)", "(2", "2", "(2,,)", "((2,),)", "('2',)", "[4]"}) {
    EXPECT_FALSE(open_npy(folder.write("a.npy", npy("'|u1'", shape, "xxxx"))).ok()) << shape;
  }
}

TEST(Npy, WriteAndReadBack) {
  const TempFolder folder;
  const std::vector<int64_t> data = {1, 2, 3};
  ASSERT_TRUE(write_npy(folder / "a.npy", DType::kI64, std::vector<int64_t>{3}, std::as_bytes(std::span(data))).ok());
  EXPECT_EQ(values<int64_t>(*open_npy(folder / "a.npy")), data);
}

TEST(Npz, RealFilesReadWhole) {
  if (!std::filesystem::exists(PARTITA_MODELS)) GTEST_SKIP() << "no models at " << PARTITA_MODELS;
  int arrays = 0;
  for (const auto& folder : std::filesystem::directory_iterator(PARTITA_MODELS)) {
    for (const char* name : {"data.npz", "expected.npz"}) {
      const std::string path = (folder.path() / name).string();
      if (!std::filesystem::exists(path)) continue;
      absl::StatusOr<NpzFile> file = NpzFile::open(path);
      ASSERT_TRUE(file.ok()) << file.status();
      for (const std::string& array : file->names()) {
        absl::StatusOr<NpyArray> read = file->read(array);
        if (array == "zero_grad") {  // text
          EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
          continue;
        }
        ASSERT_TRUE(read.ok()) << read.status();
        ++arrays;
      }
    }
  }
  EXPECT_GT(arrays, 100);
}

}  // namespace
}  // namespace partita::runtime
