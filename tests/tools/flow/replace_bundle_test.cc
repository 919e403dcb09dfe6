// A bundle takes another's place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "base/cat.h"
#include "tests/support/temp_folder.h"
#include "tools/flow/write_bundle.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

absl::Status fill(const std::string& fresh, const std::string& what, int files = 0) {
  for (int k = 0; k < files; ++k) std::ofstream(cat(fresh, "/", k)) << what;
  std::ofstream(fresh + "/manifest.json") << what;
  return absl::OkStatus();
}

std::set<std::string> names(const std::string& folder) {
  std::set<std::string> all;
  for (const auto& e : fs::directory_iterator(folder)) all.insert(e.path().filename());
  return all;
}

TEST(ReplaceBundle, AtEveryMoment_OneIsThere) {
  const TempFolder folder;
  const std::string place = folder / "bundle";
  std::atomic<bool> done = false;
  std::atomic<int> missing = 0;
  ASSERT_TRUE(replace_bundle(place, [](const std::string& fresh) { return fill(fresh, "first"); }).ok());
  std::thread looking([&] {
    while (!done) missing += ::access((place + "/manifest.json").c_str(), F_OK) != 0;
  });
  for (int k = 0; k < 20; ++k)
    EXPECT_TRUE(replace_bundle(place + "/", [&](const std::string& fresh) { return fill(fresh, cat(k), 100); }).ok());
  done = true;
  looking.join();
  EXPECT_EQ(missing, 0);
  EXPECT_EQ(TempFolder::read(place + "/manifest.json"), "19");
  EXPECT_THAT(names(folder.path()), ElementsAre("bundle"));
}

TEST(ReplaceBundle, WhatProcessesThatAreGoneHaveLeft_IsRemoved) {
  const TempFolder folder;
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ::waitpid(gone, nullptr, 0);
  const std::string lives = cat("bundle.partial.", ::getppid()), of_another = cat("other.partial.", gone);
  for (const std::string& name : {cat("bundle.partial.", gone), lives, of_another, std::string("bundle.partial.x")})
    fs::create_directories(folder / (name + "/within"));
  ASSERT_TRUE(replace_bundle(folder / "bundle", [](const std::string& fresh) { return fill(fresh, "it"); }).ok());
  EXPECT_EQ(names(folder.path()), (std::set<std::string>{"bundle", lives, "bundle.partial.x", of_another}));
}

}  // namespace
}  // namespace partita
