#include "base/host/lost_file.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace partita {
namespace {

// A signal handler can look at nothing but this: no lock, no memory that may move.
struct Mapping {
  std::atomic<const char*> begin = nullptr;  // null: free
  std::atomic<size_t> bytes = 0;             // 0: not filled in yet
  std::atomic<char*> path = nullptr;
};
std::array<Mapping, 4096> mappings;
std::atomic<void (*)(const LostFile&)> ending = nullptr;

void hear(int signal, siginfo_t* info, void*) {
  end_if_lost_file(*info);
  ::signal(signal, SIG_DFL);  // what did it is done again, and ends the process
}

}  // namespace

void remember_mapping(const void* begin, size_t bytes, const std::string& path) {
  for (Mapping& m : mappings) {
    const char* none = nullptr;
    if (m.begin != nullptr || !m.begin.compare_exchange_strong(none, static_cast<const char*>(begin))) continue;
    m.path = ::strdup(path.c_str());
    m.bytes = m.path == nullptr ? 0 : bytes;
    return;
  }
}

void forget_mapping(const void* begin) {
  for (Mapping& m : mappings) {
    if (m.begin != static_cast<const char*>(begin)) continue;
    m.bytes = 0;
    std::free(m.path.exchange(nullptr));
    m.begin = nullptr;
    return;
  }
}

void end_if_lost_file(const siginfo_t& fault) {
  auto* const end = ending.load();
  const char* const at = static_cast<const char*>(fault.si_addr);
  for (const Mapping& m : mappings) {
    const char* const begin = m.begin;
    if (end == nullptr || fault.si_code != BUS_ADRERR || begin == nullptr || at < begin || at >= begin + m.bytes)
      continue;
    end({m.path, static_cast<size_t>(at - begin), m.bytes});
  }
}

void end_on_lost_files(void (*end)(const LostFile& file)) {
  if (ending.exchange(end) != nullptr) return;  // it is heard already
  struct sigaction action {};
  action.sa_sigaction = hear;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace partita
