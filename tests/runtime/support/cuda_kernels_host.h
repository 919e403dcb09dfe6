// The CUDA module's own kernels (runtime/cuda/kernels/*.cu) compiled for the host: one coroutine for each thread of a
// block (tests/support/thread_block.h), and bodies for what a GPU has as instructions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/thread_block.h"

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;

#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define KERNEL [[maybe_unused]] static
#define UNROLL
using std::max;
using std::min;

#include "runtime/cuda/kernels/element.h"

namespace partita::runtime {

// In which order blocks run, and the threads of a block between two points where they wait; and when copies into shared
// memory happen: as soon as they are asked for where it is kForward, else when they are waited for. Results must not
// depend on it.
enum class HostOrder { kBackward, kForward, kShuffled };

// Runs a kernel's body for every thread of every block.
class HostGrid {
 public:
  static HostGrid& instance() {
    static HostGrid grid;
    return grid;
  }

  // `shared_bytes`: what the launch gives a block beside the kernel's own shared memory; NaN when a block begins.
  void launch(Index3 blocks, unsigned threads, const std::function<void()>& body, size_t shared_bytes = 0,
              HostOrder order = HostOrder::kBackward) {
    gridDim = blocks, blockDim = {threads};
    pending_.assign(threads, {});
    eager_ = order == HostOrder::kForward;
    shared_.resize(shared_bytes / sizeof(Aligned));
    std::vector<int> of_threads = numbers(threads, order), of_blocks = numbers(blocks.x * blocks.y * blocks.z, order);
    for (int number : of_blocks) {
      const unsigned b = static_cast<unsigned>(number);
      blockIdx = {b % blocks.x, b / blocks.x % blocks.y, b / blocks.x / blocks.y};
      std::fill(shared_.begin(), shared_.end(), kNoNumbers);
      ThreadBlock::instance().run(of_threads, [&] {
        arrive();
        body();
        PARTITA_CHECK(mine().size() <= 1 && (mine().empty() || mine().back().empty()), "a copy is not waited for");
        mine().clear();
      });
    }
  }

  void barrier() {
    ThreadBlock::instance().barrier();
    arrive();
  }
  void exchange(const ThreadBlock::Words& words, int tag) {
    ThreadBlock::instance().exchange(words, tag);
    arrive();
  }
  char* shared() { return reinterpret_cast<char*>(shared_.data()); }

  struct Copy {
    void* to;
    const void* from;
    bool exists;
  };
  void copy(const Copy& c) {
    PARTITA_CHECK(reinterpret_cast<uintptr_t>(c.to) % 16 == 0 && reinterpret_cast<uintptr_t>(c.from) % 16 == 0,
                  "a copy of 16 bytes that is not aligned");
    if (eager_) return perform(c);
    if (mine().empty()) mine().emplace_back();
    mine().back().push_back(c);
  }
  void commit() {
    if (mine().empty()) mine().emplace_back();
    mine().emplace_back();
  }
  void wait(size_t groups) {
    while (mine().size() > groups + 1) {  // the last one is not committed yet
      for (const Copy& c : mine().front()) perform(c);
      mine().pop_front();
    }
  }

 private:
  struct alignas(16) Aligned {
    uint64_t words[2];
  };
  static constexpr Aligned kNoNumbers = {{~uint64_t{0}, ~uint64_t{0}}};

  static std::vector<int> numbers(unsigned count, HostOrder order) {
    std::vector<int> n(count);
    std::iota(n.begin(), n.end(), 0);
    if (order == HostOrder::kBackward) std::reverse(n.begin(), n.end());
    if (order == HostOrder::kShuffled) std::shuffle(n.begin(), n.end(), std::mt19937(7));
    return n;
  }
  static void perform(const Copy& c) {
    if (c.exists)
      std::memcpy(c.to, c.from, 16);
    else
      std::memset(c.to, 0, 16);
  }
  // This thread's own number again: others ran in between.
  void arrive() { threadIdx = {static_cast<unsigned>(ThreadBlock::instance().number())}; }
  std::deque<std::vector<Copy>>& mine() { return pending_[threadIdx.x]; }

  bool eager_ = false;
  std::vector<Aligned> shared_;
  std::vector<std::deque<std::vector<Copy>>> pending_;  // by thread
};

}  // namespace partita::runtime

inline void __syncthreads() { partita::runtime::HostGrid::instance().barrier(); }

// The bodies of kernels/warp.h, whose declarations say what they do.
namespace warp_host {
using partita::ThreadBlock;

enum Tag { kShuffle, kMatrices, kProduct };
inline const ThreadBlock::Words& received(int lane) { return ThreadBlock::instance().received(lane); }
inline int lane() { return static_cast<int>(threadIdx.x) % ThreadBlock::kWarpSize; }

inline uint16_t half_of(uint64_t word, int which) { return static_cast<uint16_t>(word >> (16 * which)); }

inline void load_matrices(uint32_t (&r)[4], const void* row, bool transpose) {
  PARTITA_CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a row of a matrix that is not aligned");
  // What a row holds is given, not where it lies: the other threads may be ahead of this one when they read.
  ThreadBlock::Words words{};
  std::memcpy(words.data(), row, 16);
  partita::runtime::HostGrid::instance().exchange(words, kMatrices);
  auto element = [&](int matrix, int at_row, int column) {
    return uint32_t{half_of(received(matrix * 8 + at_row)[static_cast<size_t>(column / 4)], column % 4)};
  };
  const int g = lane() / 4, k = lane() % 4 * 2;
  for (int m = 0; m < 4; ++m)
    r[m] = transpose ? element(m, k, g) | element(m, k + 1, g) << 16 : element(m, g, k) | element(m, g, k + 1) << 16;
}

template <typename T>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  partita::runtime::HostGrid::instance().exchange({a[0], a[1], a[2], a[3], b0, b1}, kProduct);
  auto number = [](uint64_t word, int k) { return wide(T{half_of(word, k % 2)}); };
  const int g = lane() / 4, column = lane() % 4 * 2;
  for (int x = 0; x < 4; ++x) {
    for (int k = 0; k < 16; ++k) {
      const size_t register_a = static_cast<size_t>(k / 8 * 2 + x / 2), register_b = static_cast<size_t>(4 + k / 8);
      c[x] += number(received(g * 4 + k % 8 / 2)[register_a], k) *
              number(received((column + x % 2) * 4 + k % 8 / 2)[register_b], k);
    }
  }
}

}  // namespace warp_host

inline float shuffle(float value, int from) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  partita::runtime::HostGrid::instance().exchange({bits}, warp_host::kShuffle);
  bits = static_cast<uint32_t>(warp_host::received(from)[0]);
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}
inline float shuffle_xor(float value, int mask) { return shuffle(value, warp_host::lane() ^ mask); }
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) { warp_host::load_matrices(r, row, false); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) { warp_host::load_matrices(r, row, true); }
template <typename T>
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T) {
  warp_host::multiply<T>(c, a, b0, b1);
}
template <typename T>
uint32_t pack(float low, float high, T) {
  return uint32_t{narrow<T>(low).bits} | uint32_t{narrow<T>(high).bits} << 16;
}
inline void copy_async16(void* to, const void* from, bool exists) {
  partita::runtime::HostGrid::instance().copy({to, from, exists});
}
inline void commit_copies() { partita::runtime::HostGrid::instance().commit(); }
template <int kGroups>
void wait_copies() {
  partita::runtime::HostGrid::instance().wait(kGroups);
}
inline char* launch_shared() { return partita::runtime::HostGrid::instance().shared(); }
