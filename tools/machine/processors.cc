#include "tools/machine/processors.h"

#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/cat.h"

namespace partita {
namespace {

// The first line of a file, empty where there is none.
std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The NUMA node of a processor: its folder has a link of that name.
std::string node_of(const std::string& processor) {
  std::error_code ec;
  for (std::filesystem::directory_iterator link(processor, ec), end; !ec && link != end; link.increment(ec)) {
    std::string name = link->path().filename().string();
    if (name.starts_with("node")) return name;
  }
  return "node0";
}

}  // namespace

Processors count_processors(const std::string& system) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  std::set<std::string> cores, packages, nodes;
  for (int k = 0; k < CPU_SETSIZE; ++k) {
    if (!CPU_ISSET(k, &allowed)) continue;
    const std::string processor = cat(system, "/cpu/cpu", k);
    std::string core = line_of(processor + "/topology/thread_siblings_list");  // which threads share it
    if (core.empty()) continue;
    cores.insert(std::move(core));
    packages.insert(line_of(processor + "/topology/physical_package_id"));
    nodes.insert(node_of(processor));
  }
  if (cores.empty()) return {CPU_COUNT(&allowed), 1, 1};
  return {static_cast<int>(cores.size()), static_cast<int>(packages.size()), static_cast<int>(nodes.size())};
}

}  // namespace partita
