// The CUDA module's own kernels (runtime/cuda/kernels/*.cu) compiled for the host: one coroutine for each thread of a
// block, switched at barriers.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads();

#define __device__
#define __shared__ static
#define KERNEL [[maybe_unused]] static
using std::min;

namespace partita::runtime {

// Runs a kernel's body for every thread of every block, blocks in reverse.
class HostGrid {
 public:
  static HostGrid& instance() {
    static HostGrid grid;
    return grid;
  }

  void launch(Index3 blocks, unsigned threads, const std::function<void()>& body) {
    gridDim = blocks, blockDim = {threads};
    body_ = &body;
    contexts_.resize(threads);
    stacks_.resize(threads * kStack);
    for (unsigned b = blocks.x * blocks.y; b-- > 0;) {
      block_ = {b % blocks.x, b / blocks.x};
      run_block(threads);
    }
  }

  void barrier() {
    waiting_[current_] = true;
    swapcontext(&contexts_[current_], &scheduler_);
  }

 private:
  static constexpr size_t kStack = 32 << 10;

  static void enter() {
    HostGrid& g = instance();
    (*g.body_)();
    g.done_[g.current_] = true;
    swapcontext(&g.contexts_[g.current_], &g.scheduler_);
  }

  void run_block(unsigned threads) {
    done_.assign(threads, false);
    for (unsigned t = 0; t < threads; ++t) {
      getcontext(&contexts_[t]);
      contexts_[t].uc_stack.ss_sp = stacks_.data() + t * kStack;
      contexts_[t].uc_stack.ss_size = kStack;
      contexts_[t].uc_link = nullptr;
      makecontext(&contexts_[t], enter, 0);
    }
    for (;;) {
      waiting_.assign(threads, false);
      for (current_ = threads; current_-- > 0;) {
        if (done_[current_]) continue;
        const unsigned now = current_;
        threadIdx = {now}, blockIdx = block_;
        swapcontext(&scheduler_, &contexts_[now]);
        current_ = now;
      }
      const long ended = std::count(done_.begin(), done_.end(), true);
      if (ended == static_cast<long>(threads)) return;
      PARTITA_CHECK(ended == 0, "threads that leave before a barrier of their block");
    }
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<ucontext_t> contexts_;
  std::vector<char> stacks_;
  std::vector<bool> done_, waiting_;
  ucontext_t scheduler_;
  unsigned current_ = 0;
  Index3 block_;
};

}  // namespace partita::runtime

// After it, this thread's own numbers again: others ran in between.
inline void __syncthreads() {
  const Index3 thread = threadIdx;
  partita::runtime::HostGrid::instance().barrier();
  threadIdx = thread;
}
