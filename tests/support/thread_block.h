// The threads of a GPU's block on one thread of the host: coroutines that run until they must wait for each other. What
// a GPU would leave undefined stops the test: a barrier that some threads of the block or warp do not reach.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"

namespace partita {

class ThreadBlock {
 public:
  static constexpr int kWarpSize = 32;
  using Words = std::array<uint64_t, 8>;  // what a thread may give to the others of its warp

  // One block at a time.
  static ThreadBlock& instance() {
    static ThreadBlock block;
    return block;
  }

  // Runs `body` on as many threads as there are in `order`. A warp gets as far ahead of the others as barriers allow;
  // warps, and the threads of one between two points where they wait, run in that order.
  void run(const std::vector<int>& order, const std::function<void()>& body) {
    const int count = static_cast<int>(order.size());
    threads_.resize(std::max(threads_.size(), order.size()));
    if (stacks_.size() < order.size() * kStack) stacks_.resize(order.size() * kStack);
    body_ = &body;
    for (int t = 0; t < count; ++t) {
      Thread& thread = at(t);
      thread.state = State::kReady;
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = stacks_.data() + kStack * static_cast<size_t>(t);
      thread.context.uc_stack.ss_size = kStack;
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, enter, 0);
    }
    std::vector<std::vector<int>> warps;  // in the order of their first threads
    std::vector<int> place(static_cast<size_t>((count + kWarpSize - 1) / kWarpSize), -1);
    for (int t : order) {
      int& at = place[static_cast<size_t>(t / kWarpSize)];
      if (at < 0) at = static_cast<int>(warps.size()), warps.emplace_back();
      warps[static_cast<size_t>(at)].push_back(t);
    }
    do {
      for (const auto& warp : warps) run_to_barrier(warp);
    } while (!pass_barrier(count));
  }

  int number() const { return current_; }
  void barrier() { wait(State::kBarrier); }
  // Gives `words` and waits for the warp; the others' are then read by received(). All threads of the warp must come
  // with the same `tag`.
  void exchange(const Words& words, int tag) {
    Thread& thread = at(current_);
    thread.turn = 1 - thread.turn;  // two places: whoever is first at the next exchange overwrites nothing that is read
    thread.words[thread.turn] = words;
    thread.tag = tag;
    wait(State::kWarp);
  }
  const Words& received(int lane) { return at(current_ / kWarpSize * kWarpSize + lane).words[at(current_).turn]; }

 private:
  static constexpr size_t kStack = 64 << 10;
  enum class State { kReady, kBarrier, kWarp, kDone };
  struct Thread {
    ucontext_t context;
    State state = State::kReady;
    int tag = 0;
    size_t turn = 0;
    std::array<Words, 2> words;
  };

  static void enter() {
    ThreadBlock& b = instance();
    (*b.body_)();
    b.at(b.current_).state = State::kDone;
    swapcontext(&b.at(b.current_).context, &b.scheduler_);
  }

  Thread& at(int t) { return threads_[static_cast<size_t>(t)]; }
  void wait(State state) {
    at(current_).state = state;
    swapcontext(&at(current_).context, &scheduler_);
  }
  bool all(int begin, int end, State state) {
    for (int t = begin; t < end; ++t) {
      if (at(t).state != state) return false;
    }
    return true;
  }

  // Until its threads are at a barrier of the block, or done.
  void run_to_barrier(const std::vector<int>& warp) {
    for (;;) {
      for (int t : warp) {
        current_ = t;
        if (at(t).state == State::kReady) swapcontext(&scheduler_, &at(t).context);
      }
      if (at(warp[0]).state != State::kWarp) return;
      for (int t : warp) {
        PARTITA_CHECK(at(t).state == State::kWarp && at(t).tag == at(warp[0]).tag && at(t).turn == at(warp[0]).turn,
                      "threads of a warp at different exchanges");
        at(t).state = State::kReady;
      }
    }
  }

  // True once all are done.
  bool pass_barrier(int count) {
    if (all(0, count, State::kDone)) return true;
    PARTITA_CHECK(all(0, count, State::kBarrier), "threads of a block wait for others that do not come");
    for (int t = 0; t < count; ++t) at(t).state = State::kReady;
    return false;
  }

  std::vector<char> stacks_;
  std::vector<Thread> threads_;
  ucontext_t scheduler_;
  int current_ = 0;
  const std::function<void()>* body_ = nullptr;
};

}  // namespace partita
