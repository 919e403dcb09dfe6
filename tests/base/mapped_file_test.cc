#include "base/mapped_file.h"

#include <sys/stat.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using ::testing::HasSubstr;

TEST(MappedFile, ReadsAWholeFile) {
  const TempFolder folder;
  absl::StatusOr<MappedFile> file = MappedFile::open(folder.write("a", std::string("x\0y", 3)));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 3);
  EXPECT_EQ(file->text(), std::string_view("x\0y", 3));
  const MappedFile moved = std::move(*file);
  EXPECT_EQ(moved.text(), std::string_view("x\0y", 3));
  EXPECT_EQ(file->size(), 0);  // NOLINT: a moved-from map is empty
}

TEST(MappedFile, EmptyFileHasNoBytes) {
  const TempFolder folder;
  absl::StatusOr<MappedFile> file = MappedFile::open(folder.write("a", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size(), 0);
}

TEST(MappedFile, ErrorsNameThePath) {
  const TempFolder folder;
  const absl::Status missing = MappedFile::open(folder / "none\n").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("none\\n': No such file"));
  EXPECT_THAT(std::string(MappedFile::open(folder.path()).status().message()), HasSubstr("it is a folder"));
}

TEST(MappedFile, RefusesAFifoWithoutBlocking) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(std::string(MappedFile::open(folder / "fifo").status().message()), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace partita
