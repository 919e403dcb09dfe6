#include "runtime/files/write_runs.h"

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

// A folder on a disk: that of the tests may be memory, which has no writes past the cache.
std::string on_disk() { return std::filesystem::current_path().string(); }

std::vector<std::byte> drawn(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

// Runs of many lengths, shuffled, with holes between some: what is written is there, and the holes are as they were.
// `shift`: of their places in memory beside those in the file, modulo a page.
void check(const std::string& path, std::vector<int64_t> lengths, int64_t hole_after, int threads, size_t shift) {
  int64_t bytes = 4321;
  std::vector<int64_t> begins;
  for (size_t k = 0; k < lengths.size(); ++k) {
    begins.push_back(bytes);
    bytes += lengths[k] + (static_cast<int64_t>(k) % 3 == 2 ? hole_after : 0);
  }
  bytes += 99;
  constexpr size_t kPage = kWrittenPage;
  const std::vector<std::byte> before = drawn(static_cast<size_t>(bytes), 1),
                               drawn_after = drawn(before.size() + 2 * kPage, 2);
  const size_t whole = kPage - reinterpret_cast<uintptr_t>(drawn_after.data()) % kPage;
  const std::span<const std::byte> after = std::span(drawn_after).subspan(whole + shift, before.size());
  std::vector<std::byte> expected = before;
  std::vector<FileRun> runs;
  for (size_t k = 0; k < lengths.size(); ++k) {
    const auto at = static_cast<size_t>(begins[k]), n = static_cast<size_t>(lengths[k]);
    runs.push_back({begins[k], after.subspan(at, n)});
    std::copy_n(after.begin() + begins[k], n, expected.begin() + begins[k]);
  }
  std::shuffle(runs.begin(), runs.end(), std::mt19937(3));
  auto file = AtomicFile::create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->append(before).ok());
  const absl::Status written = write_runs(*file, runs, threads);
  ASSERT_TRUE(written.ok()) << written;
  ASSERT_TRUE(file->commit(Durable::kNo).ok());
  const std::string found = TempFolder::read(path);
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_TRUE(std::equal(found.begin(), found.end(), reinterpret_cast<const char*>(expected.data())));
}

TEST(WriteRuns, AllBytesAndNoOthers) {
  const TempFolder memory;
  for (const std::string& folder : {on_disk(), memory.path()}) {
    const std::string path = folder + "/write_runs_test.bin";
    for (const size_t shift : {0, 16}) {
      check(path, {}, 0, 4, shift);
      check(path, {1}, 0, 4, shift);
      check(path, {5, 4096, 0, 300, 12288, 1}, 7, 1, shift);
      // Long enough for several blocks, and for the way past the cache: whole, and of many pieces.
      check(path, {10'000'000}, 0, 4, shift);
      check(path, {3'000'000, 1, 4095, 2'000'000, 700'001, 5'000'000, 8}, 1, 4, shift);
      check(path, std::vector<int64_t>(3000, 999), 0, 3, shift);
      check(path, std::vector<int64_t>(300, 9999), 4096, 2, shift);
    }
    std::filesystem::remove(path);
  }
}

TEST(WriteRuns, ADiskThatIsFull_IsAnError) {
  const TempFolder folder;
  auto file = AtomicFile::create(folder / "f");
  ASSERT_TRUE(file.ok());
  const std::vector<std::byte> bytes(8 << 20);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit less{1 << 20, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &less), 0);
  const absl::Status status = write_runs(*file, {{0, bytes}}, 4);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("bytes at offset"));
}

}  // namespace
}  // namespace partita::runtime
