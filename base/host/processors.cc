#include "base/host/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

namespace partita {
namespace {

// Of v2's cpu.max: "200000 100000" or "max 100000", in microseconds.
std::optional<double> quota_v2(const std::string& folder) {
  double quota = 0, period = 0;
  std::ifstream file(folder + "/cpu.max");
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// v1's two files; a quota of -1 is none.
std::optional<double> quota_v1(const std::string& folder) {
  double quota = 0, period = 0;
  if (!(std::ifstream(folder + "/cpu.cfs_quota_us") >> quota) || quota <= 0) return std::nullopt;
  if (!(std::ifstream(folder + "/cpu.cfs_period_us") >> period) || period <= 0) return std::nullopt;
  return quota / period;
}

}  // namespace

std::vector<int> allowed_processors() {
  constexpr int kMost = 1 << 16;
  std::vector<int> allowed;
  // The kernel refuses a set that is smaller than its own.
  for (int count = CPU_SETSIZE; count <= kMost && allowed.empty(); count *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(static_cast<size_t>(count)),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(count));
    if (::sched_getaffinity(0, bytes, set.get()) != 0) continue;
    for (int k = 0; k < count; ++k) {
      if (CPU_ISSET_S(k, bytes, set.get())) allowed.push_back(k);
    }
  }
  return allowed;
}

int usable_processors(const std::string& cgroups, const std::string& own) {
  const std::vector<int> allowed = allowed_processors();
  int count = static_cast<int>(allowed.empty() ? std::thread::hardware_concurrency() : allowed.size());
  std::ifstream groups(own);
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" of v2, "4:cpu,cpuacct:/a/b" of v1
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::string mount = v2 ? cgroups : cgroups + "/" + controllers;
    // A limit of any group above holds as well. In a container the path may be one of the host's: then its mount alone
    // is there.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      if (const std::optional<double> quota = v2 ? quota_v2(mount + path) : quota_v1(mount + path))
        count = std::min(count, static_cast<int>(*quota));
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return std::max(1, count);
}

}  // namespace partita
