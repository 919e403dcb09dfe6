// Threads that stand for ranks.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/transports/collective_threads.h"

namespace partita::runtime {

// Runs `body(rank, communicator)` on a thread for each rank.
template <typename F>
void on_ranks(int ranks, F body) {
  ThreadWorld world(ranks, {.timeout = std::chrono::seconds(20)});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator = world.communicator(rank);
      ASSERT_TRUE(communicator.ok());
      body(rank, communicator->get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace partita::runtime
