#include "tools/machine/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/cat.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> all;
  for (int k = 0; k < CPU_SETSIZE; ++k)
    if (CPU_ISSET(k, &set)) all.push_back(k);
  return all;
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text << "\n";
}

TEST(Processors, ThreadsOfOneCoreCountOnce) {
  const TempFolder system;
  const std::vector<int> processors = allowed_processors();
  for (size_t k = 0; k < processors.size(); ++k) {
    const std::filesystem::path folder = system / cat("cpu/cpu", processors[k]);
    write(folder / "topology/thread_siblings_list", cat("of core ", k / 2));
    write(folder / "topology/physical_package_id", cat(k / 4));
    std::filesystem::create_directory(folder / cat("node", k / 8));
  }
  const Processors found = count_processors(system.path());
  const int count = static_cast<int>(processors.size());
  EXPECT_EQ(found.cores, (count + 1) / 2);
  EXPECT_EQ(found.packages, (count + 3) / 4);
  EXPECT_EQ(found.numa_nodes, (count + 7) / 8);
}

TEST(Processors, ForbiddenProcessorsDoNotCount) {
  const std::vector<int> processors = allowed_processors();
  const TempFolder system;
  for (int k : {processors.front(), processors.back() + 1}) {
    const std::filesystem::path folder = system / cat("cpu/cpu", k);
    write(folder / "topology/thread_siblings_list", cat(k));
    write(folder / "topology/physical_package_id", cat(k));
  }
  EXPECT_EQ(count_processors(system.path()).cores, 1);
  EXPECT_EQ(count_processors(system.path()).packages, 1);
}

TEST(Processors, WithoutTheirFolder_AreThreads) {
  const Processors found = count_processors("/absent");
  EXPECT_EQ(found.cores, static_cast<int>(allowed_processors().size()));
  EXPECT_EQ(found.packages, 1);
  EXPECT_EQ(found.numa_nodes, 1);
}

}  // namespace
}  // namespace partita
