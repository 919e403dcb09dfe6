#include "runtime/launch/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

namespace partita::runtime {
namespace {

// One that is still to be taken when nobody waits for signals any more: the other ranks were told, and the run is over.
TEST(StopSignal, OneThatComesAtTheEnd_DoesNotEndTheProcess) {
  const auto run = [] {
    std::atomic<bool> is_leaving = false, heard = false;
    auto signals = std::make_unique<StopSignal>([&](int) {
      heard = true;
      while (!is_leaving) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
    ::kill(::getpid(), SIGTERM);
    while (!heard) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(::getpid(), SIGINT);
    is_leaving = true;
    signals.reset();
    std::exit(7);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(7), "");
}

TEST(StopSignal, WishToSave_WaitsUntilSomebodyListens_AndEndsNobodyAfterwards) {
  const auto run = [] {
    hold_save_signal();
    ::kill(::getpid(), SIGUSR1);
    {
      StopSignal signals;
      while (!*signals.save()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::kill(::getpid(), SIGUSR1);
    std::exit(7);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace partita::runtime
