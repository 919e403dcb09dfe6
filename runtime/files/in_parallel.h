// Work in parts, by threads of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "base/host/processors.h"

namespace partita::runtime {

// visit(0) to visit(n - 1), each once, by at most so many threads, of which the caller's is one.
template <typename Visit>
void in_parallel(int threads, size_t n, const Visit& visit) {
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t k; (k = next.fetch_add(1)) < n;) visit(k);
  };
  std::vector<std::thread> others;
  for (size_t k = 1; k < std::min(n, static_cast<size_t>(std::max(threads, 1))); ++k) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
}

// Threads that make or copy a batch of large samples: as many as the process has processors, at most 8.
inline int batch_threads() { return std::clamp(usable_processors(), 1, 8); }

}  // namespace partita::runtime
