#include "runtime/launch/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <ctime>

namespace partita::runtime {
namespace {

sigset_t terminate_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t set = terminate_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  waiter_ = std::thread([this] {
    const sigset_t awaited = terminate_set();
    const timespec patience{0, 50'000'000};
    // One request may come twice (to the process and to its group); a later one means it.
    std::chrono::steady_clock::time_point first;
    while (!done_.load()) {
      if (sigtimedwait(&awaited, nullptr, &patience) != SIGTERM) continue;
      const auto now = std::chrono::steady_clock::now();
      if (!stopped_.exchange(true)) {
        first = now;
      } else if (now - first > std::chrono::seconds(2)) {
        ::_exit(128 + SIGTERM);
      }
    }
  });
}

StopSignal::~StopSignal() {
  done_ = true;
  waiter_.join();
  const sigset_t set = terminate_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace partita::runtime
