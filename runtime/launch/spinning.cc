#include "runtime/launch/spinning.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>

namespace partita::runtime {
namespace {

constexpr const char* kTurns = "GOMP_SPINCOUNT";
constexpr double kMicroseconds = 150;

// What one turn takes: 10 to 60 ns, by how long the processor pauses.
double turn_microseconds() {
  constexpr int kMeasured = 500;
  double least = 1;
  for (int round = 0; round < 3; ++round) {  // the first may be preempted
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < kMeasured; ++k) {
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#else
      asm volatile("" ::: "memory");
#endif
    }
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count() / kMeasured);
  }
  return std::max(least, 1e-4);
}

}  // namespace

void limit_spinning(char** argv) {
  if (::getenv(kTurns) != nullptr || ::getenv("OMP_WAIT_POLICY") != nullptr) return;
  std::error_code ec;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", ec).string();
  if (ec) return;
  const auto turns = static_cast<long>(kMicroseconds / turn_microseconds());
  if (::setenv(kTurns, std::to_string(turns).c_str(), 0) == 0) ::execv(self.c_str(), argv);
}

}  // namespace partita::runtime
