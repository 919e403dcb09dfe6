#include "base/fault.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/mapped_file.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

template <typename E>
absl::Status status_of(E exception) {
  try {
    throw exception;
  } catch (...) {
    return status_of_exception();
  }
}

TEST(Fault, ExceptionsAreStatusesOfTheirKind) {
  EXPECT_TRUE(absl::IsResourceExhausted(status_of(std::bad_alloc())));
  EXPECT_TRUE(absl::IsResourceExhausted(
      status_of(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)))));
  EXPECT_TRUE(absl::IsInternal(status_of(std::system_error(std::make_error_code(std::errc::io_error)))));
  EXPECT_EQ(status_of(std::runtime_error("why")).message(), "why");
  EXPECT_TRUE(absl::IsInternal(status_of(3)));
}

TEST(FaultDeathTest, AFileThatIsTruncatedWhileItIsRead_IsTold) {
  const TempFolder folder;
  const std::string path = folder.write("data.bin", std::string(20000, 'x'));
  EXPECT_EXIT(
      {
        exit_on_uncaught();
        MappedFile file = *MappedFile::open(path);
        const MappedFile moved = std::move(file);
        std::filesystem::resize_file(path, 100);
        std::fprintf(stderr, "read %d\n", static_cast<int>(moved.bytes()[15000]));
      },
      ::testing::ExitedWithCode(2), "data.bin' cannot be read any more at byte 15000 of the 20000 that it had");
}

}  // namespace
}  // namespace partita
