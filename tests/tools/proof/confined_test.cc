#include "tools/proof/confined.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using ::testing::HasSubstr;
using Text = absl::StatusOr<std::string>;

class Confined : public ::testing::Test {
 protected:
  Confinement limits(int64_t seconds = 60) const { return {own_.path(), int64_t{1} << 32, seconds}; }
  // Whether the system holds the child to what these words begin.
  static bool holds(const ConfinedResult& r, std::string_view words) {
    return std::any_of(r.held.begin(), r.held.end(), [&](const std::string& h) { return h.starts_with(words); });
  }
  TempFolder own_, other_;
};

TEST_F(Confined, ResultsAndErrorsComeBack) {
  auto said = run_confined(limits(), []() -> Text { return "fine"; });
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->text, "fine");
  EXPECT_EQ(said->held.size() + said->lacking.size(), 4u);
  auto failed = run_confined(limits(), []() -> Text { return absl::NotFoundError("no such thing"); });
  EXPECT_EQ(failed.status(), absl::NotFoundError("no such thing"));
}

TEST_F(Confined, WhatItMayNotDo_ItCannot) {
  auto said = run_confined(limits(), [&]() -> Text {
    std::string did;
    if (std::ofstream(own_ / "mine") << "x") did += "own ";
    if (std::ofstream(other_ / "theirs") << "x") did += "other ";
    if (::socket(AF_INET, SOCK_STREAM, 0) >= 0) did += "socket ";
    if (::kill(::getppid(), 0) == 0) did += "kill ";
    ::execl("/bin/true", "true", nullptr);  // where it succeeds, nothing is said
    return did + "exec refused";
  });
  ASSERT_TRUE(said.ok()) << said.status();
  if (holds(*said, "no sockets")) {
    EXPECT_EQ(said->text, "own exec refused");
  }
  if (holds(*said, "writing in its own folder")) {
    EXPECT_FALSE(std::ifstream(other_ / "theirs").good());
  }
  EXPECT_THAT(said->text, HasSubstr("own "));
}

TEST_F(Confined, ACrash_IsNamed) {
  auto said = run_confined(limits(), []() -> Text {
    std::raise(SIGSEGV);
    return "";
  });
  EXPECT_EQ(said.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(said.status().message()), HasSubstr("signal 11"));
}

TEST_F(Confined, TimeAndMemory_AreLimited) {
  auto late = run_confined(limits(1), []() -> Text {
    ::sleep(30);
    return "";
  });
  EXPECT_EQ(late.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("within 1 s"));
  auto large = run_confined(limits(), []() -> Text {
    std::string much(size_t{1} << 33, 'x');
    return much.substr(0, 1);
  });
  EXPECT_EQ(large.status().code(), absl::StatusCode::kResourceExhausted) << large.status();
}

}  // namespace
}  // namespace partita
