#include "runtime/record/process.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "base/cat.h"

namespace partita::runtime {
namespace {

struct Stat {
  char state = 0;
  int64_t start = 0;
};

// proc(5): number (name) state, then field 22 is the start. A name may hold anything.
Stat read_stat(int64_t process) {
  std::ifstream file(cat("/proc/", process, "/stat"));
  std::string text;
  std::getline(file, text, '\0');
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream rest(text.substr(end + 1));
  Stat stat;
  rest >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  rest >> stat.start;
  return stat;
}

}  // namespace

int64_t process_start(int64_t process) { return read_stat(process).start; }

char process_state(int64_t process, int64_t start) {
  const Stat stat = read_stat(process);
  const bool ended = stat.state == 'Z' || stat.state == 'X' || stat.start != start;
  return ended ? '\0' : stat.state;
}

uint64_t host_key() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::array<char, 64> name{};
  [[maybe_unused]] const ssize_t length = ::readlink("/proc/self/ns/pid", name.data(), name.size() - 1);
  return std::hash<std::string>()(cat(boot, " ", name.data()));
}

}  // namespace partita::runtime
