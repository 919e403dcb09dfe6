#include "base/atomic_file.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "base/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using ::testing::HasSubstr;

TEST(AtomicFile, AppearsOnlyAtCommit) {
  const TempFolder folder;
  const std::string path = folder.write("a", "old");
  absl::StatusOr<AtomicFile> file = AtomicFile::create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->append("new text").ok());
  EXPECT_EQ(TempFolder::read(path), "old");
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(TempFolder::read(path), "new text");
  EXPECT_EQ(folder.files(), 1u);
  EXPECT_EQ(file->commit().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(AtomicFile, LeavesNothingWhenDropped) {
  const TempFolder folder;
  {
    absl::StatusOr<AtomicFile> file = AtomicFile::create(folder / "a");
    ASSERT_TRUE(file->append("half").ok());
    EXPECT_EQ(folder.files(), 1u);
    AtomicFile moved = std::move(*file);
    EXPECT_EQ(folder.files(), 1u);
  }
  EXPECT_EQ(folder.files(), 0u);
}

TEST(AtomicFile, WritesAtOffsetsFromSeveralOwners) {
  const TempFolder folder;
  absl::StatusOr<AtomicFile> first = AtomicFile::create(folder / "a", "step-7");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(first->reserve(6).ok());
  absl::StatusOr<AtomicFile> second = AtomicFile::join(folder / "a", "step-7");
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE(second->write_at(3, as_byte_span("def")).ok());
  ASSERT_TRUE(first->write_at(0, as_byte_span("abc")).ok());
  ASSERT_TRUE(second->commit().ok());
  ASSERT_TRUE(first->commit().ok());
  EXPECT_EQ(TempFolder::read(folder / "a"), "abcdef");
  EXPECT_EQ(AtomicFile::join(folder / "a", "step-7").status().code(), absl::StatusCode::kNotFound);
}

TEST(AtomicFile, FollowsALinkAtTheTarget) {
  const TempFolder folder;
  folder.write("real", "old");
  std::filesystem::create_symlink(folder / "real", folder / "link");
  ASSERT_TRUE(write_file_atomically(folder / "link", "new").ok());
  EXPECT_EQ(TempFolder::read(folder / "real"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
}

TEST(AtomicFile, ADeviceIsNotReplaced) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(write_file_atomically(folder / "pipe", "x").message()), HasSubstr("device or pipe"));
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST(AtomicFile, ErrorsNameThePath) {
  const TempFolder folder;
  EXPECT_EQ(write_file_atomically(folder / "no/such/a", "x").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(write_file_atomically(folder.path(), "x").message()), HasSubstr("it is a folder"));
  EXPECT_FALSE(write_file_atomically("", "x").ok());
}

// A limit on the size of files stands for a full disk: both fail in the same calls.
TEST(AtomicFile, FullDiskIsResourceExhaustedAndLeavesNothing) {
  const TempFolder folder;
  rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1000, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status written = write_file_atomically(folder / "a", std::string(5000, 'x'));
  absl::StatusOr<AtomicFile> file = AtomicFile::create(folder / "b");
  const absl::Status reserved = file->reserve(123456);
  file = absl::CancelledError();
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(written.code(), absl::StatusCode::kResourceExhausted) << written;
  EXPECT_EQ(reserved.code(), absl::StatusCode::kResourceExhausted) << reserved;
  EXPECT_THAT(std::string(reserved.message()), HasSubstr("/b': File too large (123456 bytes at offset 0)"));
  EXPECT_EQ(folder.files(), 0u);
}

}  // namespace
}  // namespace partita
