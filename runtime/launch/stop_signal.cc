#include "runtime/launch/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <utility>

#include "base/exit_code.h"

namespace partita::runtime {
namespace {

using std::chrono::milliseconds;

// One request may come twice: to the process and to its group, from a terminal and from a supervisor. A later one means
// it; from the same sender, a little later is late enough.
constexpr milliseconds kSameSender{200}, kOtherSender{2000};

sigset_t awaited() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void hold_save_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

StopSignal::StopSignal(std::function<void(int)> told) : told_(std::move(told)) {
  const sigset_t set = awaited();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  waiter_ = std::thread([this] { wait(); });
}

void StopSignal::wait() {
  const sigset_t set = awaited();
  const timespec patience{0, 50'000'000};
  std::chrono::steady_clock::time_point first;
  pid_t sender = 0;
  while (!done_.load()) {
    siginfo_t info{};
    const int signal = sigtimedwait(&set, &info, &patience);
    if (signal == SIGUSR1) save_ = true;
    if (signal != SIGTERM && signal != SIGINT) continue;
    const auto now = std::chrono::steady_clock::now();
    const pid_t from = info.si_code > 0 ? 0 : info.si_pid;  // 0: the kernel, for a terminal
    if (!stopped_.load()) {
      if (told_) told_(signal);
      first = now, sender = from;
      stopped_ = true;
    } else if (now - first > (from == sender ? kSameSender : kOtherSender)) {
      ::_exit(kFirstRetryCode + signal);
    }
  }
}

StopSignal::~StopSignal() {
  done_ = true;
  waiter_.join();
  sigset_t set = awaited();
  // Whoever has heard of a wish to stop in another way may end before its own signal was taken: that one would end the
  // process by its default action, as if nobody had obeyed.
  const timespec at_once{0, 0};
  while (sigtimedwait(&set, nullptr, &at_once) > 0) {
  }
  sigdelset(&set, SIGUSR1);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace partita::runtime
