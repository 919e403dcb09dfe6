#include "base/fault.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <system_error>

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

}  // namespace
}  // namespace partita
