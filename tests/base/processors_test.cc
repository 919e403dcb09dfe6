#include "base/host/processors.h"

#include <sched.h>

#include <filesystem>
#include <fstream>

#include "base/temporary_folder.h"
#include "gtest/gtest.h"

namespace partita {
namespace {

class Processors : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  int usable() const { return usable_processors(folder_.path() + "/groups", folder_.path() + "/own"); }

  TemporaryFolder folder_ = *TemporaryFolder::create("control groups");
  cpu_set_t all_ = [] {
    cpu_set_t all;
    ::sched_getaffinity(0, sizeof all, &all);
    return all;
  }();
};

TEST_F(Processors, AreThoseOfTheAffinityWithoutALimit) {
  EXPECT_EQ(usable(), CPU_COUNT(&all_));
  write("own", "0::/job");
  write("groups/job/cpu.max", "max 100000");
  EXPECT_EQ(usable(), CPU_COUNT(&all_));
  int first = 0;
  while (!CPU_ISSET(first, &all_)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable(), 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof all_, &all_), 0);
}

TEST_F(Processors, AQuotaLimits_OfTheGroupAndOfThoseAbove) {
  if (CPU_COUNT(&all_) < 2) GTEST_SKIP() << "one processor";
  write("own", "0::/job/step");
  write("groups/job/step/cpu.max", "900000 100000");
  write("groups/job/cpu.max", "150000 100000");
  EXPECT_EQ(usable(), 1);
  write("groups/job/cpu.max", "50000 100000");
  EXPECT_EQ(usable(), 1);  // half of one: still one
  write("groups/job/cpu.max", "max 100000");
  EXPECT_GE(usable(), 2);
}

TEST_F(Processors, AQuotaOfVersionOneLimits_FromTheMountOfAContainerToo) {
  if (CPU_COUNT(&all_) < 2) GTEST_SKIP() << "one processor";
  write("own", "9:cpuset:/\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/");
  write("groups/cpu,cpuacct/cpu.cfs_quota_us", "100000");
  write("groups/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(usable(), 1);
  write("groups/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  EXPECT_GE(usable(), 2);
}

}  // namespace
}  // namespace partita
